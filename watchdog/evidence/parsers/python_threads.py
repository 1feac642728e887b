"""Read stacks that Python itself prints: faulthandler files, and dumps of torch's debug server.

Example::

    === Rank 0: http://node-1:40123/handler/dump_traceback? ===
    Thread 0x00007f0b (most recent call first):
      File "/job/train.py", line 35 in next_batch
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.faulthandler_text import ThreadStacks
from fabwatch.watchdog.evidence.observations import (
    Observation,
    Parsed,
    RankStacks,
    ReadError,
    Source,
)
from fabwatch.watchdog.evidence.py_spy_text import read_text

NAME = "python-threads"
MAKES = ("python-stack",)

_RANK = re.compile(r"^=== Rank (?P<rank>\d{1,7}): (?:https?://)?(?P<host>[\w.\-]*)\S* ===\s*$")
_OF_DUMP = re.compile(
    rb"\s|(?:Current thread|Thread) 0x|Timeout \(|Fatal Python error|Extension modules|<|=== |"
    rb"Python runtime"
)
_FEW = 5
_FAILED = re.compile(r"^  Rank (?P<rank>\d{1,7}): (?P<why>.*)$|^Error: (?P<code>.*)$")


def sniff(head: bytes, name: str) -> int:
    """Thread headers of faulthandler, or the rank headers of the debug server."""
    if re.search(rb"^=== Rank \d+: \S+ ===", head, re.M):
        return 94
    top = b"\n".join(head.lstrip()[:2000].split(b"\n")[:5])
    if re.search(rb"^(?:Current thread|Thread) 0x[0-9a-f]+ .*?\(most recent call", top, re.M):
        return 88 if _mere_dump(head) else 15
    return 0


def _mere_dump(head: bytes) -> bool:
    """Whether little else stands between the stacks; in a job's own log they are the guests."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    return sum(1 for line in lines if not _OF_DUMP.match(line)) <= _FEW


def parse(artefact: Artefact) -> Parsed:
    """One RankStacks for each rank in the file."""
    text, _ = artefact.text(256 * 1024 * 1024)
    lines = text.replace("\r\n", "\n").split("\n")
    starts = [(i, m) for i, line in enumerate(lines) if (m := _RANK.match(line))]
    out: list[Observation] = []
    looked: list[Source] = []
    errors: list[ReadError] = []
    if not starts:
        source = artefact.source("python-stack")
        _one(lines, 1, source, out, looked)
    for index, (at, match) in enumerate(starts):
        end = starts[index + 1][0] if index + 1 < len(starts) else len(lines)
        rank = int(match["rank"])
        source = artefact.source("python-stack", rank=rank, host=match["host"] or None)
        if not _one(lines[at + 1 : end], at + 2, source, out, looked):
            why = next((line.strip() for line in lines[at + 1 : end] if line.strip()), "nothing")
            errors.append(
                artefact.error(f"rank {rank} gave no stack: {why[:200]}", str(at + 1), "ask again")
            )
    if not out and not errors:
        errors.append(artefact.error("holds no stack", advice="save it again"))
    return Parsed(tuple(out), tuple(errors), tuple(looked))


def _one(
    lines: list[str], first: int, source: Source, out: list[Observation], looked: list[Source]
) -> bool:
    """The stacks of one process: faulthandler's format, else py-spy's."""
    stacks = ThreadStacks()
    for number, line in enumerate(lines, first):
        stacks.feed(line, number)
    threads = stacks.finish()
    pid: int | None = None
    if not threads:
        dump = read_text("\n".join(lines), first)
        if dump.processes:
            threads, pid = tuple(dump.processes[0].threads), dump.processes[0].pid
    if not threads:
        return False
    out.append(RankStacks(source, source.rank, pid, False, "", threads))
    looked.append(source)
    return True
