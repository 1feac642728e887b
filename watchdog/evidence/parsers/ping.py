"""Read what ping says of a path: how many packets of which size came back.

Example::

    $ ping -c 3 -M do -s 8972 192.0.2.11
    PING 192.0.2.11 (192.0.2.11) 8972(9000) bytes of data.
    3 packets transmitted, 0 received, 100% packet loss, time 2046ms
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "ping"
MAKES = ("other-text",)
PASTED = True

_COMMAND = re.compile(r"\bping6?\s+(?P<words>-?\w.{0,400})")
_SIZE = re.compile(r"(?:^|\s)-s ?(?P<size>\d{1,5})\b")
_TARGET = re.compile(r"(?:^|\s)(?P<target>[A-Za-z0-9][\w.\-:]{2,63})(?=\s|$|\|)")
_BEGIN = re.compile(
    r"^PING6?[ (](?P<target>[\w.\-:]{3,64})\)? ?(?:\([\w.:%]{3,64}\) )?.{0,80}?"
    r"(?P<size>\d{1,5})\(\d{1,5}\) bytes of data"
)
_REPLY = re.compile(
    r"^(?P<bytes>\d{1,5}) bytes from (?P<target>[\w.\-:%]{3,64})\b.{0,80}?(?:icmp_)?seq[= ]"
)
_END = re.compile(r"(?P<sent>\d{1,7}) packets transmitted, (?P<came>\d{1,7}) (?:packets )?received")
_USUAL = 56
"""Bytes of payload that ping sends when nobody says how many; a reply counts 8 more."""
_OF_OTHERS = re.compile(r"-[cwWitIMQpm] ?\S+")


def sniff(head: bytes, name: str) -> int:
    """The line at the end of a run, or replies."""
    start = head[:16384]
    if re.search(rb"\d packets transmitted, \d+ (?:packets )?received", start):
        return 84
    return 70 if re.search(rb"^\d+ bytes from \S+: icmp_seq=\d", start, re.M) else 0


def parse(artefact: Artefact) -> Parsed:
    """One look for each run: to whom, of which size, how many were sent and came back."""
    text, _ = artefact.text(4 * 1024 * 1024)
    looks = Looks(artefact.source("other-text"))
    target, size = _asked(artefact.asked)
    replies: dict[int, None] = {}
    last = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _BEGIN.match(line):
            _put(looks, target, size, None, len(replies), last)
            target, size, replies = match["target"], int(match["size"]), {}
        elif match := _REPLY.match(line):
            target = target or match["target"]
            size = size if size is not None else max(int(match["bytes"]) - 8, 0)
            replies[number] = None
            last = number
        elif match := _END.search(line):
            _put(looks, target, size, int(match["sent"]), int(match["came"]), number)
            target, size, replies = *_asked(artefact.asked), {}
        elif "ping" in line and "statistics" not in line and _COMMAND.search(line) and not replies:
            target, size = _asked(line)
    _put(looks, target, size, None, len(replies), last)
    return Parsed(looks.out(), (), (looks.source,) if looks else ())


def _put(
    looks: Looks, target: str, size: int | None, sent: int | None, came: int, line: int
) -> None:
    """One run; without a line at its end only what came back is known, and only if anything."""
    if not target or not line or (sent is None and not came):
        return
    size = _USUAL if size is None else size
    name = f"{target}#{size}#{line}"
    looks.put("path", name, "target", target, line)
    looks.put("path", name, "size", size, line)
    looks.put("path", name, "sent", sent if sent is not None else came, line)
    looks.put("path", name, "came", came, line)


def _asked(command: str) -> tuple[str, int | None]:
    """Target and size of a command line; ("", None) when it is none of ping."""
    match = _COMMAND.search(command)
    if match is None:
        return "", None
    words = match["words"].split("|")[0]
    size = _SIZE.search(words)
    rest = _OF_OTHERS.sub(" ", _SIZE.sub(" ", words))
    targets = [t["target"] for t in _TARGET.finditer(rest)]
    return (targets[-1] if targets else ""), int(size["size"]) if size else None
