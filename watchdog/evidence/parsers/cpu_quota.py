"""Read the CPU quota of cgroups: cpu.max, cpu.stat of v2 and v1, as pasted from shells and pods.

Example::

    $ kubectl exec worker-2 -- sh -c 'cat /sys/fs/cgroup/cpu.max; cat /sys/fs/cgroup/cpu.stat'
    200000 100000
    nr_periods 412008
    nr_throttled 398811
    throttled_usec 291180443120
"""

from __future__ import annotations

import re
from dataclasses import replace

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, whole
from fabwatch.watchdog.evidence.observations import Measured, Parsed

NAME = "cpu-quota"
MAKES = ("pressure",)
PASTED = True

_STAT = re.compile(
    r"(?:^|[\s:])(?P<key>nr_periods|nr_throttled|throttled_usec|throttled_time)[ :=\t]{1,8}"
    r"(?P<value>\d{1,20})\s*$"
)
_MAX = re.compile(r"^\s*(?P<quota>max|\d{4,12}) (?P<period>\d{4,8})\s*$")
_LOOP = re.compile(
    r"\bfor (?P<variable>\w{1,32}) in (?P<values>[^;]{1,4000}); ?do\b.*?\bexec (?:-\S+ )*"
    r"(?P<before>[\w.\-]*)\$\{?(?P=variable)\}?(?P<after>[\w.\-]*)"
)


def sniff(head: bytes, name: str) -> int:
    """Two of the lines of cpu.stat."""
    start = head[:16384]
    both = re.search(rb"\bnr_periods[ :=\t]+\d", start) and re.search(
        rb"\bnr_throttled[ :=\t]+\d", start
    )
    return 88 if both else 0


def parse(artefact: Artefact) -> Parsed:
    """One look for each cgroup that is shown; a loop over pods names them in its order."""
    text, _ = artefact.text(4 * 1024 * 1024)
    source = artefact.source("pressure")
    blocks: list[list[tuple[str, str | int, int]]] = [[]]
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        found: list[tuple[str, str | int]] = []
        if match := _MAX.match(line):
            quota = whole(match["quota"])
            found = [("quota_usec", "max" if quota is None else quota),
                     ("period_usec", whole(match["period"]) or 0)]  # fmt: skip
        elif match := _STAT.search(line):
            found = [(match["key"], int(match["value"]))]
        for key, value in found:
            if any(key == known for known, _, _ in blocks[-1]):
                blocks.append([])
            blocks[-1].append((key, value, number))
    names = _looped(artefact.asked)
    blocks = [block for block in blocks if block]
    out: list[Measured] = []
    for index, block in enumerate(blocks):
        own = names[index] if len(names) == len(blocks) else None
        looks = Looks(replace(source, host=own) if own else source)
        for key, value, number in block:
            looks.put("cgroup", "cpu", key, value, number)
        out += looks.out()
    return Parsed(tuple(out), (), (source,) if out else ())


def _looped(command: str) -> list[str]:
    """The pods or containers that a shell loop goes through, in order."""
    match = _LOOP.search(command[:8000])
    if match is None:
        return []
    return [match["before"] + value + match["after"] for value in match["values"].split()]
