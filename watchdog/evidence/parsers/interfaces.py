"""Read network counters: ``ip -s link``, /proc/net/netstat and snmp, ``netstat -s``, ``ss -ti``.

Example::

    2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT
        RX:   bytes packets errors dropped  missed   mcast
        10646600390  282726      0       0       0       0
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import LinkCounters, Observation, Parsed, Source

NAME = "interfaces"
MAKES = ("interfaces", "sockets")
PASTED = True

MAX_LINKS = 100_000
_LINK = re.compile(
    r"^(?:\d+: )?(?P<name>[\w.\-]+)(?:@(?P<peer>[\w.\-]+))?: <(?P<flags>[A-Z0-9_,\-]*)> mtu "
    r"(?P<mtu>\d+)"
    r"(?:.*? state (?P<state>[A-Z]+))?"
)
_TABLE = re.compile(r"^\s+(?P<way>RX|TX)(?P<errors> errors)?:\s+(?P<names>[a-z].*)$")
_PAIRS = re.compile(
    r"^(?P<group>TcpExt|IpExt|MPTcpExt|Tcp|Udp|UdpLite|Ip|Icmp|IcmpMsg): (?P<words>.+)$"
)
_HUMAN = (
    (re.compile(r"(\d{1,20}) segments retransmitt?ed"), "Tcp.RetransSegs"),
    (re.compile(r"(\d{1,20}) segments sent out"), "Tcp.OutSegs"),
    (re.compile(r"(\d{1,20}) segments received$"), "Tcp.InSegs"),
    (re.compile(r"(\d{1,20}) bad segments received"), "Tcp.InErrs"),
    (re.compile(r"(\d{1,20}) resets sent"), "Tcp.OutRsts"),
    (re.compile(r"(\d{1,20}) connection resets received"), "Tcp.EstabResets"),
    (re.compile(r"(\d{1,20}) fast retransmits"), "TcpExt.TCPFastRetrans"),
    (re.compile(r"(\d{1,20}) other TCP timeouts"), "TcpExt.TCPTimeouts"),
    (re.compile(r"(\d{1,20}) connections aborted due to timeout"), "TcpExt.TCPAbortOnTimeout"),
    (re.compile(r"(?:TCP(\w+)): (\d{1,20})"), ""),
    (re.compile(r"(In|Out)Octets: (\d{1,20})"), ""),
)
_SOCKET = re.compile(
    r"^(?:(?:tcp|u_str|mptcp)\s+)?(?P<state>ESTAB|LISTEN|SYN-SENT|SYN-RECV|FIN-WAIT-[12]|TIME-WAIT|"
    r"CLOSE-WAIT|LAST-ACK|CLOSING|UNCONN|CLOSED)\s+(?P<recv>\d+)\s+(?P<send>\d+)\s+"
    r"(?P<local>\S+:\S+)\s+"
    r"(?P<peer>\S+:\S+)(?P<rest>.*)$"
)
_SOCKET_NUMBERS = re.compile(
    r"\b(rto|backoff|unacked|lost|bytes_sent|bytes_acked|bytes_received|bytes_retrans|segs_out|"
    r"segs_in|lastsnd|lastrcv|lastack|cwnd|notsent|busy):(\d+)"
)
_RETRANS = re.compile(r"\bretrans:(\d+)/(\d+)")
_USER = re.compile(r"pid=(\d+)")


def sniff(head: bytes, name: str) -> int:
    """Link headers with flags and counters, counter groups of /proc/net, or socket lines."""
    start = head[:16384]
    if re.search(rb"^\d+: [\w.@\-]+: <[A-Z0-9_,\-]*> mtu \d+", start, re.M):
        return 92
    if re.search(rb"^(?:TcpExt|IpExt|Tcp|Ip|Icmp): [A-Z]\w+ [A-Z]", start, re.M):
        return 92
    if re.search(rb"^\s+\d+ segments (?:sent out|received)", start, re.M):
        return 88
    if re.search(rb"^State\s+Recv-Q\s+Send-Q", start, re.M):
        return 92
    if re.search(
        rb"^(?:ESTAB|SYN-SENT|CLOSE-WAIT|FIN-WAIT-\d)\s+\d+\s+\d+\s+\S+:\d+\s+\S+:\d+", start, re.M
    ):
        return 88
    if start.startswith(b"ss: ") and len(head) < 1024:
        return 60
    return 0


def parse(artefact: Artefact) -> Parsed:
    """LinkCounters of each interface, of the TCP stack, and of each socket."""
    text, _ = artefact.text(128 * 1024 * 1024)
    lines = [line[:4096] for line in text.split("\n")]
    out: list[Observation] = []
    looked: list[Source] = []
    links = _links(lines, artefact.source("interfaces"))
    if links:
        out += links
        looked.append(artefact.source("interfaces"))
    sockets = artefact.source("sockets")
    stack = _stack(lines)
    if stack:
        out.append(LinkCounters(sockets, "tcp", "", None, tuple(stack.items())))
    found = _sockets(lines, sockets)
    out += found
    if stack or found or re.search(r"^State\s+Recv-Q", text, re.M):
        looked.append(sockets)
    if not out and not looked:
        why = lines[0].strip()[:200] if lines else "nothing"
        return Parsed(errors=(artefact.error(f"holds no counters: {why}", advice="save it again"),))
    return Parsed(tuple(out), (), tuple(looked))


def _links(lines: list[str], source: Source) -> list[LinkCounters]:
    out: list[LinkCounters] = []
    head: re.Match[str] | None = None
    counters: dict[str, int] = {}
    way, names = "", list[str]()

    def close() -> None:
        if head is not None and len(out) < MAX_LINKS:
            flags = head["flags"].split(",")
            state = head["state"] or ""
            carrier: bool | None = "LOWER_UP" in flags
            if "NO-CARRIER" in flags:
                carrier = False
            if state == "UNKNOWN":
                state = "UP" if "UP" in flags and carrier else "UNKNOWN"
            if "UP" not in flags:
                state = "DOWN"
            out.append(LinkCounters(source, head["name"], state, carrier, tuple(counters.items())))

    for line in lines:
        if match := _LINK.match(line):
            close()
            head, counters, way = match, {}, ""
            if match["mtu"]:
                counters["mtu"] = int(match["mtu"][:9])
        elif head is not None and (match := _TABLE.match(line)):
            way = match["way"].lower()
            names = match["names"].replace(":", "").split()
            if match["errors"]:
                names = ["err_" + name for name in names]
        elif head is not None and way:
            words = line.split()
            if words and all(word.isdigit() and len(word) < 21 for word in words):
                for name, word in zip(names, words, strict=False):
                    counters[f"{way}_{_SHORT.get(name, name)}"] = int(word)
            way = ""
    close()
    return out


_SHORT = {"dropped": "drop", "overrun": "over", "missed": "missed", "collsns": "collisions"}


def _stack(lines: list[str]) -> dict[str, int]:
    """Counters of the TCP and IP stack: those that are not zero, and those that matter."""
    out: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    for line in lines:
        if match := _PAIRS.match(line):
            group, words = match["group"], match["words"].split()
            if all(re.fullmatch(r"-?\d+", word) for word in words):
                for name, word in zip(names.pop(group, []), words, strict=False):
                    number = int(word[:20])
                    full = f"{group}.{name}"
                    if number or full in _KEEP:
                        out[full] = number
            else:
                names[group] = words
    if out:
        return out
    for line in lines:
        text = line.strip()
        for regex, name in _HUMAN:
            match = regex.search(text)
            if match is None:
                continue
            if name:
                out.setdefault(name, int(match[1][:20]))
            elif match[1] in ("In", "Out"):
                out.setdefault(f"IpExt.{match[1]}Octets", int(match[2][:20]))
            else:
                out.setdefault(f"TcpExt.TCP{match[1]}", int(match[2][:20]))
            break
    return out


_KEEP = frozenset(
    {
        "Tcp.RetransSegs", "Tcp.InSegs", "Tcp.OutSegs", "Tcp.EstabResets", "Tcp.OutRsts",
        "TcpExt.TCPTimeouts", "TcpExt.TCPLostRetransmit", "TcpExt.TCPFastRetrans",
        "TcpExt.TCPSynRetrans", "TcpExt.TCPAbortOnTimeout", "TcpExt.TCPRetransFail",
        "IpExt.InOctets", "IpExt.OutOctets", "TcpExt.TCPZeroWindowDrop",
    }
)  # fmt: skip


def _sockets(lines: list[str], source: Source) -> list[LinkCounters]:
    out: list[LinkCounters] = []
    head: re.Match[str] | None = None
    more = ""

    def close() -> None:
        if head is not None and len(out) < MAX_LINKS:
            text = head["rest"] + " " + more
            counters = {"recv_q": int(head["recv"][:18]), "send_q": int(head["send"][:18])}
            for name, number in _SOCKET_NUMBERS.findall(text):
                counters[name] = int(number[:18])
            if match := _RETRANS.search(text):
                counters["retrans_now"] = int(match[1][:18])
                counters["retrans"] = int(match[2][:18])
            if match := _USER.search(text):
                counters["pid"] = int(match[1][:10])
            name = f"{head['local']}->{head['peer']}"[:200]
            out.append(LinkCounters(source, name, head["state"], None, tuple(counters.items())))

    for line in lines:
        if match := _SOCKET.match(line):
            close()
            head, more = match, ""
        elif head is not None and line[:1] in (" ", "\t") and len(more) < 8000:
            more += " " + line.strip()
    close()
    return out
