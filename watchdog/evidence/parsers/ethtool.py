"""Read ethtool (settings and ``-S`` counters) and nstat.

Example::

    NIC statistics:
         rx_discards_phy: 9001
         link_down_events_phy: 3
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, whole
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "ethtool"
MAKES = ("interfaces", "sockets")
PASTED = True

_SETTINGS = re.compile(r"^Settings for (?P<nic>[\w.\-@]{1,32}):")
_STATISTICS = re.compile(r"^NIC statistics:")
_COUNT = re.compile(r"^\s{2,16}(?P<key>[\w.\[\]\-]{2,64}): (?P<count>\d{1,20})\s*$")
_SPEED = re.compile(r"^\s+Speed: (?P<mbps>\d{1,7})Mb/s")
_MODE = re.compile(r"\b(?P<mbps>\d{2,7})base[A-Za-z0-9/]+/Full")
_DETECTED = re.compile(r"^\s+Link detected: (?P<yes>yes|no)\b")
_ASKED = re.compile(r"ethtool (?:-\S+ )*(?P<nic>[a-zA-Z][\w.\-]{1,31})\b")
_NSTAT = re.compile(
    r"^(?P<key>(?:Ip|Tcp|Udp|Icmp|TcpExt|IpExt)\w{2,60})\s+(?P<count>\d{1,20})\s+[\d.]+\s*$"
)
_NAMED = re.compile(r"(?:^|[._\-])(?P<nic>(?:en|eth|ib|bond|rdma)[a-z0-9]{1,20})(?:[._\-]|$)")


def sniff(head: bytes, name: str) -> int:
    """The headings of ethtool, or the counters of nstat."""
    if re.search(rb"^NIC statistics:|^Settings for \S+:", head, re.M):
        return 94
    return 90 if head.startswith(b"#kernel\n") or b"\n#kernel\n" in head[:4096] else 0


def parse(artefact: Artefact) -> Parsed:
    """One nic look for each interface; nstat's counters are those of ``tcp``."""
    text, _ = artefact.text(32 * 1024 * 1024)
    source = artefact.source("interfaces")
    looks = Looks(source)
    sockets = Looks(artefact.source("sockets"))
    told = _ASKED.search(artefact.asked) or _NAMED.search(artefact.name)
    nic = told["nic"] if told else ""
    best = 0
    supported = False
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _SETTINGS.match(line):
            nic, best = match["nic"], 0
        elif _STATISTICS.match(line):
            nic = nic or "nic"
        elif nic and (match := _COUNT.match(line)):
            looks.put("nic", nic, match["key"], whole(match["count"]), number)
        elif nic and (match := _SPEED.match(line)):
            looks.put("nic", nic, "speed_mbps", whole(match["mbps"]), number)
            if best:
                looks.put("nic", nic, "speed_max_mbps", best, number)
        elif nic and (match := _DETECTED.match(line)):
            looks.put("nic", nic, "link", match["yes"], number)
        elif match := _NSTAT.match(line):
            sockets.put("nic", "tcp", match["key"], whole(match["count"]), number)
        if nic and ":" in line:
            supported = "Supported link modes:" in line if "modes" in line else False
        if supported:
            best = max([best, *(int(m["mbps"]) for m in _MODE.finditer(line))])
    made = [one for one in (looks, sockets) if one]
    if not made:
        return Parsed(errors=(artefact.error("holds no counter", advice="run it again"),))
    return Parsed(
        tuple(m for one in made for m in one.out()), (), tuple(one.source for one in made)
    )
