"""Read native stacks: gdb ``thread apply all bt``, pstack, eu-stack.

Example::

    Thread 3 (Thread 0x7f8 (LWP 4711) "pt_main"):
    #0  0x00007f87c16233c7 in sched_yield () at ../sysdeps/unix/syscall-template.S:120
    #1  0x00007f875927b68b in ?? () from /usr/lib/x86_64-linux-gnu/libcuda.so.1
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import Frame, Parsed, RankStacks, ThreadStack

NAME = "gdb"
MAKES = ("native-stack",)

MAX_THREADS = 20_000
_THREAD = re.compile(
    r"^Thread (?P<number>\d+)(?: \((?:Thread (?P<address>0x[0-9a-f]+) )?\(?(?:LWP "
    r"(?P<tid>\d+)\)?|process (?P<pid>\d+)\)?)"
    r"(?: \"(?P<name>[^\"]*)\"| (?P<name2>[\w.\-]+))?\)?)?.*:\s*$"
)
_TID = re.compile(r"^TID (?P<tid>\d+)(?: \"(?P<name>[^\"]*)\")?:\s*$")
_FRAME = re.compile(
    r"^#(?P<depth>\d{1,5})\s+(?:(?P<address>0x[0-9a-fA-F]+)(?: in)?\s+)?(?P<function>\S.*?)?\s*"
    r"(?:\((?P<args>.*)\))?(?: at (?P<file>[^:\n]+?):(?P<line>\d+)| from (?P<library>\S+))?\s*$"
)
_ATTACH = re.compile(r"(?:Attaching to process|\[New LWP|-p(?:id)?[= ]|process )\s*(?P<pid>\d+)")
_COMMAND = re.compile(r"^\$ (?:gdb|pstack|eu-stack)\b.*?(?P<pid>\d{2,10})")


def sniff(head: bytes, name: str) -> int:
    """Numbered frames with addresses, arguments or libraries."""
    frames = len(re.findall(rb"^#\d+\s+(?:0x[0-9a-f]+|[\w:~<>]+ \()", head[:16384], re.M))
    if re.search(rb"^Thread \d+ \((?:Thread|LWP|process)", head, re.M) and frames:
        return 93
    if re.search(rb"^#0\s+(?:0x[0-9a-f]+ in )?\S", head, re.M) and frames >= 2:
        return 75 if b" from /" in head or b" at " in head or b" ()" in head else 30
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One RankStacks with native frames."""
    text, _ = artefact.text(128 * 1024 * 1024)
    threads: list[ThreadStack] = []
    pid = artefact.hint.pid
    head: tuple[str, int | None, int] | None = None
    frames: list[Frame] = []
    depth = -1

    def close() -> None:
        if frames and len(threads) < MAX_THREADS:
            name, tid, line = head or ("", None, 0)
            threads.append(ThreadStack(name, tid, False, False, tuple(frames), line))
        frames.clear()

    for number, line in enumerate(text.split("\n"), 1):
        line = line[:4096].rstrip("\r")
        if match := _THREAD.match(line):
            close()
            tid = match["tid"] or match["pid"]
            head = (match["name"] or match["name2"] or "", int(tid[:10]) if tid else None, number)
            depth = -1
        elif match := _TID.match(line):
            close()
            head, depth = (match["name"] or "", int(match["tid"][:10]), number), -1
        elif line.startswith("#") and (match := _FRAME.match(line)):
            this = int(match["depth"])
            if this <= depth and this == 0:
                close()
                head = None
            depth = this
            if len(frames) < 2000:
                function = (match["function"] or match["address"] or "??").strip()
                if function == "??" and match["address"]:
                    function = match["address"]
                file = match["file"] or (match["library"] or "").rsplit("/", 1)[-1]
                frames.append(Frame(function[:400], file[:1000], int((match["line"] or "0")[:9])))
        elif (
            pid is None and not threads and (match := _COMMAND.match(line) or _ATTACH.search(line))
        ):
            pid = int(match["pid"][:10])
    close()
    if not threads:
        return Parsed(errors=(artefact.error("holds no stack", advice="save it again"),))
    source = artefact.source("native-stack")
    if pid is None:
        # The thread whose kernel id is the lowest is the process itself.
        tids = [t.os_tid for t in threads if t.os_tid]
        pid = min(tids) if tids else None
    stacks = RankStacks(source, source.rank, pid, True, "", tuple(threads))
    return Parsed((stacks,), (), (source,))
