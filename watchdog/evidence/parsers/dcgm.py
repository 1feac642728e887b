"""Read ``dcgmi diag`` and ``dcgmi health -c``: which test or watched system failed on which GPU.

Example::

    | Memory                    | Fail - GPU: 3                                  |
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "dcgm"
MAKES = ("gpu",)
PASTED = True

_ROW = re.compile(r"^\|\s?(?P<left>[^|]{0,80}?)\s*\|\s*(?P<right>[^|]{0,400}?)\s*\|?\s*$")
_RESULT = re.compile(r"^(?P<result>Pass|Fail|Warn|Skip)\b(?: - (?P<who>.*))?$", re.I)
_GPUS = re.compile(r"GPUs?:? ?(?P<gpus>\d{1,4}(?:\s?,\s?\d{1,4}){0,64})")
_ENTITY = re.compile(r"^-> (?:GPU(?: ID)?:? ?)?(?P<gpu>\d{1,4})$")
_SYSTEM = re.compile(r"^-> (?P<system>[A-Z][\w /]{1,40}?)(?: system)?$")


def sniff(head: bytes, name: str) -> int:
    """The titles of the two reports."""
    if re.search(
        rb"\|\s*(?:Diagnostic\s+\||Successfully ran diagnostic|Health Monitor Report)", head
    ):
        return 94
    return 94 if b"Health Monitor Report" in head or b"Successfully ran diagnostic" in head else 0


def parse(artefact: Artefact) -> Parsed:
    """``test:<name>`` is pass, fail or warn, for each GPU that is named (else for ``all``)."""
    text, _ = artefact.text(16 * 1024 * 1024)
    looks = Looks(artefact.source("gpu"))
    health = "Health Monitor Report" in text
    gpu, last = "all", ""
    for number, line in enumerate(text.split("\n"), 1):
        match = _ROW.match(line[:LINE_BYTES])
        if match is None:
            continue
        left, right = match["left"].strip(), match["right"].strip()
        if health:
            if found := _ENTITY.match(left):
                gpu = f"gpu{int(found['gpu'])}"
            system = _SYSTEM.match(left)
            name = system["system"] if system else left if left == "Overall Health" else ""
            if name and name != "Errors" and right in ("Failure", "Warning", "Healthy", "Fail"):
                what = {"Failure": "fail", "Fail": "fail", "Warning": "warn"}.get(right, "pass")
                looks.put("gpu", gpu, f"test:{name}", what, number)
        elif (found := _RESULT.match(right)) and found["result"].lower() != "skip":
            who = _GPUS.search(found["who"] or "")
            names = [f"gpu{int(n)}" for n in who["gpus"].split(",")] if who else ["all"]
            last = left or last
            for one in names:
                looks.put("gpu", one, f"test:{last}", found["result"].lower(), number)
    if not looks:
        return Parsed(errors=(artefact.error("holds no result", advice="run it again"),))
    return Parsed(looks.out(), (), (looks.source,))
