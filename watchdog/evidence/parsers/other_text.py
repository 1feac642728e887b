"""Take any other text for what it is: shown by shapes alone, and no proof of absence.

Example::

    max locked memory       (kbytes, -l) 64
"""

from __future__ import annotations

from fabwatch.watchdog.evidence.artefact import Artefact, looks_binary
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "other-text"
MAKES = ("other-text",)

_CODE = (".md", ".py", ".c", ".h", ".cc", ".cu", ".cpp", ".rs", ".go", ".js", ".html", ".css")


def sniff(head: bytes, name: str) -> int:
    """Readable text that is no source code; everybody else's claim comes first."""
    if looks_binary(head) or name.endswith(_CODE) or not head.strip():
        return 0
    if b"\0" in head[:4096] and head[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        return 0
    return 1


def parse(artefact: Artefact) -> Parsed:
    """Only that it was read; its shaped lines are looked for in every text alike."""
    return Parsed((), (), (artefact.source("other-text"),))
