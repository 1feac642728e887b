"""Read lists of processes: ``ps aux``, ``ps -ef``, ``ps -eo pid,stat,wchan,cmd``, ``top -b``.

Example::

    USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
    root        4711  0.0  2.1 99999 12345 ?        T    10:00   0:12 python train.py
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import whole
from fabwatch.watchdog.evidence.observations import Parsed, ProcessState

NAME = "process-list"
MAKES = ("process",)
PASTED = True

MAX_PROCESSES = 50_000
_HEAD = re.compile(
    r"^\s*(?=(?:.*\s)?PID\b)(?P<names>(?:[A-Z%+][A-Z%+:]{0,12}\s+){1,24}(?:COMMAND|CMD|ARGS|COMM|"
    r"WCHAN|STAT|S))\s*$"
)
_STATE = re.compile(r"^[RSDTtZXIKWP][<NLsl+]{0,6}$")
_INTEREST = re.compile(
    r"python|torchrun|train|ray::|accelerate|deepspeed|vllm|mpirun|nccl|gdb|lldb|strace", re.I
)


def sniff(head: bytes, name: str) -> int:
    """A heading with PID and a state or command column."""
    for line in head[:16384].decode("utf-8", "replace").split("\n"):
        if "PID" in line and _HEAD.match(line.rstrip()):
            return 86
    return 0


def parse(artefact: Artefact) -> Parsed:
    """A ProcessState for each process of a job that the list shows with a state."""
    text, _ = artefact.text(64 * 1024 * 1024)
    source = artefact.source("process")
    names: list[str] = []
    out: list[ProcessState] = []
    rows = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if match := _HEAD.match(line):
            names = match["names"].split()
            continue
        words = line.split(None, max(len(names) - 1, 0))
        if not names or len(words) < min(len(names), 2):
            names = names if line.strip() else []
            continue
        row = dict(zip(names, words, strict=False))
        pid = whole(row.get("PID", ""))
        if pid is None or pid >= 1 << 31 or len(out) >= MAX_PROCESSES:
            continue
        rows += 1
        state = row.get("STAT", row.get("S", ""))
        command = row.get("COMMAND", row.get("CMD", row.get("ARGS", row.get("COMM", ""))))
        if not _STATE.match(state) or not _INTEREST.search(command):
            continue
        wchan = row.get("WCHAN", "")
        out.append(
            ProcessState(
                source=source,
                rank=None,
                pid=pid,
                state=state[0],
                comm=command.split(" ")[0].rsplit("/", 1)[-1][:200],
                command=command[:4000],
                wchan="" if wchan in ("-", "0", "*") else wchan[:200],
                line=number,
            )
        )
    if not rows:
        return Parsed(errors=(artefact.error("lists no process", advice="run it again"),))
    return Parsed(tuple(out), (), ())
