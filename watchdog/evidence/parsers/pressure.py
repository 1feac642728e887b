"""Read pressure-stall files: /proc/pressure/{cpu,memory,io} and those of a cgroup.

Example::

    # /proc/pressure/memory
    some avg10=62.10 avg60=40.00 avg300=9.12 total=912345
    full avg10=41.05 avg60=30.00 avg300=7.01 total=712345
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real
from fabwatch.watchdog.evidence.observations import Parsed, ReadError

NAME = "pressure"
MAKES = ("pressure",)
PASTED = True

_LINE = re.compile(
    r"(?P<before>^.{0,300}?)\b(?P<who>some|full) avg10=(?P<avg10>[\d.]{1,8}) "
    r"avg60=(?P<avg60>[\d.]{1,8}) "
    r"avg300="
)
_WHAT = re.compile(r"(?:^|[/._\-\s#=>])(?P<what>cpu|memory|io)(?:\.pressure)?(?:[\s:._\-<]|$)")


def sniff(head: bytes, name: str) -> int:
    """The lines themselves."""
    return 91 if re.search(rb"\bsome avg10=[\d.]+ avg60=[\d.]+ avg300=", head) else 0


def parse(artefact: Artefact) -> Parsed:
    """One look for each resource that is named on the line, before it, or by the file."""
    text, _ = artefact.text(4 * 1024 * 1024)
    looks = Looks(artefact.source("pressure"))
    named = None
    for place in (artefact.asked, artefact.path):
        for match in _WHAT.finditer(place):
            named = match["what"]
        if named:
            break
    unnamed = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        hit = _LINE.search(line)
        if hit is None:
            if len(line) < 300 and (found := _WHAT.search(line)):
                named = found["what"]
            continue
        own = _WHAT.search(hit["before"])
        what = own["what"] if own else named
        if what is None:
            unnamed = unnamed or number
            continue
        looks.put("pressure", what, f"{hit['who']}_avg10", real(hit["avg10"]), number)
        looks.put("pressure", what, f"{hit['who']}_avg60", real(hit["avg60"]), number)
    errors: tuple[ReadError, ...] = ()
    if unnamed:
        problem = "pressure of an unnamed resource"
        errors = (artefact.error(problem, str(unnamed), "name the file cpu, memory or io"),)
    return Parsed(looks.out(), errors, (looks.source,) if looks else ())
