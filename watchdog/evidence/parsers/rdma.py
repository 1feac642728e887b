"""Read RDMA ports: ibstat, ibstatus, ibv_devinfo, perfquery, ``rdma link``, sysfs by grep.

Example::

    CA 'mlx5_0'
            Port 1:
                    State: Down
                    Physical state: Disabled
                    Rate: 400
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import Parsed
from fabwatch.watchdog.evidence.parsers.sysfs import put_port

NAME = "rdma"
MAKES = ("interfaces",)
PASTED = True

_CA = re.compile(r"^(?:CA '(?P<ca>[\w.\-]{1,64})'|hca_id:\s+(?P<hca>[\w.\-]{1,64}))\s*$")
_PORT = re.compile(r"^\s+(?:Port (?P<stat>\d{1,3}):|port:\s+(?P<info>\d{1,3}))\s*$")
_STATUS = re.compile(
    r"^Infiniband device '(?P<device>[\w.\-]{1,64})' port (?P<port>\d{1,3}) status:"
)
_FIELD = re.compile(
    r"^\s+(?P<key>State|Physical state|Rate|Base lid|SM lid|Link layer|state|phys state|rate|"
    r"link_layer|base lid|sm lid|active_mtu|max_mtu|sm_lid|port_lid|active_width|phys_state)"
    r":\s+(?P<value>\S.*?)\s*$"
)
_QUERY = re.compile(r"^# Port (?:extended )?counters: (?:Lid|lid) (?P<lid>\S+) port (?P<port>\d+)")
_COUNTER = re.compile(r"^(?P<key>[A-Za-z][A-Za-z0-9]{2,60}):\.{2,60}(?P<value>\d{1,20})\s*$")
_LINK = re.compile(
    r"^(?:\d{1,6}: )?link (?P<device>[\w.\-]{1,64})/(?P<port>\d{1,3})(?: (?P<rest>.{0,16000}))?$"
)
_TREE = re.compile(
    r"^(?:\S*/)?(?P<device>[A-Za-z][\w.\-]{1,60})/ports/(?P<port>\d{1,3})/"
    r"(?:hw_counters/|counters/)?(?P<key>\w{2,64})(?::\s*|\s+|\s*=\s*)(?P<value>\S.{0,80}?)\s*$"
)
_NOT_COUNTERS = frozenset({"PortSelect", "CounterSelect", "CounterSelect2", "VL15Dropped"})
_ASKED = re.compile(r"\b(?:-C|--Ca)[ =]?(?P<device>[\w.\-]{1,64})")
_SNIFF = re.compile(
    rb"^(?:CA '[\w.\-]+'|hca_id:\s+\S|Infiniband device '|# Port (?:extended )?counters: |"
    rb"(?:\d+: )?link [\w.\-]+/\d+ (?:state|\w+ \d+ )|"
    rb"\S*[\w.\-]+/ports/\d+/(?:(?:hw_)?counters/)?\w+[:= ])",
    re.M,
)


def sniff(head: bytes, name: str) -> int:
    """Headings of these tools, or paths of ports before their values."""
    return 90 if _SNIFF.search(head[:16384]) else 0


def parse(artefact: Artefact) -> Parsed:
    """What each port reads, by tool and line."""
    text, _ = artefact.text(64 * 1024 * 1024)
    looks = Looks(artefact.source("interfaces"))
    asked = _ASKED.search(artefact.asked)
    device = port = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _CA.match(line):
            device, port = match["ca"] or match["hca"], ""
        elif match := _PORT.match(line):
            port = match["stat"] or match["info"]
        elif match := _STATUS.match(line):
            device, port = match["device"], match["port"]
        elif match := _QUERY.match(line):
            device = asked["device"] if asked else f"lid {match['lid']}"
            port = match["port"] if asked else ""
        elif device and (match := _FIELD.match(line)):
            if port:
                put_port(looks, device, port, match["key"], match["value"], number)
        elif device and (match := _COUNTER.match(line)):
            if match["key"] not in _NOT_COUNTERS:
                put_port(looks, device, port, match["key"], match["value"], number)
        elif match := _LINK.match(line):
            words = (match["rest"] or "").split()
            for key, value in zip(words[::2], words[1::2], strict=False):
                if key not in ("netdev", "netdev_index"):
                    put_port(looks, match["device"], match["port"], key, value, number)
        elif match := _TREE.match(line):
            put_port(looks, match["device"], match["port"], match["key"], match["value"], number)
    if not looks:
        return Parsed(errors=(artefact.error("shows no port", advice="run it again as root"),))
    return Parsed(looks.out(), (), (looks.source,))
