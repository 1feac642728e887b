"""Judges network links: down, silent, with errors, or limited, from both ends' counters.

A port that nobody uses is often down; only a link that the job uses, that carried traffic, or
that went down between two looks, counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import LinkCounters, LogEvent

_CARRIED = 64 * 1024**2
"""Bytes after which an interface counts as used."""
_STILL = 16 * 1024
"""Bytes between two looks that keep-alives and terminals may cause."""
_BACKOFFS = 4
_LOST_PER_THOUSAND = 20
_INTERFACE = re.compile(r"(?:\[\d+\])?(?P<name>[A-Za-z][\w.\-]{0,30}):[\da-fA-F\[]")
_SPARE = re.compile(r"lo$|docker|br-|virbr|cni|flannel|cali|dummy|tun|wlan|wl")
_ERRORS = ("rx_errors", "tx_errors", "err_crc", "rx_err_crc", "tx_err_carrier", "tx_carrier")


@dataclass(slots=True)
class _Interface:
    """One interface of one host, its looks in order."""

    host: str
    name: str
    looks: list[LinkCounters] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    asked_for: bool = False

    @property
    def last(self) -> LinkCounters:
        return self.looks[-1]

    @property
    def link(self) -> str:
        return f"{self.host}/{self.name}" if self.host else self.name

    def cites(self) -> list[str]:
        return [one.source.cite() for one in self.looks]

    def moved(self, *names: str) -> int | None:
        """How much counters grew from the first look to the last; None for a single look."""
        if len(self.looks) < 2:
            return None
        first, last = dict(self.looks[0].counters), dict(self.looks[-1].counters)
        return sum(max(last.get(n, 0) - first.get(n, 0), 0) for n in names)

    @property
    def used(self) -> bool:
        """The job asked for it, or it has carried a lot."""
        counters = dict(self.last.counters)
        carried = counters.get("rx_bytes", 0) + counters.get("tx_bytes", 0)
        return self.asked_for or carried > _CARRIED


def look(
    links: Iterable[LinkCounters],
    events: Iterable[LogEvent],
    rank_of_pid: Mapping[int, int],
    hosts: Mapping[int, str],
    waiting: bool,
    facts: Facts,
) -> None:
    """Add facts about links. ``waiting``: somebody waits in an operation that nobody finished."""
    events = list(events)
    interfaces: dict[tuple[str, str], _Interface] = {}
    sockets: dict[tuple[str, str], list[LinkCounters]] = defaultdict(list)
    stacks: dict[str, list[LinkCounters]] = defaultdict(list)
    for one in sorted(links, key=lambda one: one.source.snapshot):
        host = one.source.host or ""
        if "->" in one.name:
            sockets[host, one.name].append(one)
        elif one.name == "tcp" and not one.state:
            stacks[host].append(one)
        elif not _SPARE.match(one.name):
            found = interfaces.setdefault((host, one.name), _Interface(host, one.name))
            found.looks.append(one)
    _claim(interfaces.values(), events, rank_of_pid, hosts)
    _say_down(interfaces.values(), events, facts)
    _say_silent(interfaces.values(), sockets, waiting, facts)
    _say_errors(interfaces.values(), stacks, facts)


def _claim(
    interfaces: Iterable[_Interface],
    events: Iterable[LogEvent],
    rank_of_pid: Mapping[int, int],
    hosts: Mapping[int, str],
) -> None:
    """Who uses which interface, by what NCCL says it uses.

    Names of hosts may differ between sources; an interface whose name only one host has is known
    by its name alone.
    """
    by_name: dict[str, list[_Interface]] = defaultdict(list)
    for one in interfaces:
        by_name[one.name].append(one)
    for event in events:
        if event.kind not in ("nccl-log.bootstrap-interface", "nccl-log.net-devices"):
            continue
        text = event.get("interface") or event.get("devices")
        pid = event.get("pid")
        rank = event.rank
        if rank is None and pid.isdigit():
            rank = rank_of_pid.get(int(pid))
        for match in _INTERFACE.finditer(text):
            same = by_name.get(match["name"], [])
            mine = [one for one in same if one.host in (event.host, hosts.get(rank or -1, ""))]
            for one in mine or (same if len(same) == 1 else []):
                one.asked_for = True
                if rank is not None:
                    one.ranks.add(rank)


def _say_down(interfaces: Iterable[_Interface], events: Iterable[LogEvent], facts: Facts) -> None:
    """Links that are down. An end that was set down explains the carrier that the other misses."""
    unplugged = {
        (event.source.path, event.get("interface"))
        for event in events
        if event.kind == "shape:link.no-carrier"
    }
    down: list[tuple[_Interface, bool]] = []
    for one in interfaces:
        went = len(one.looks) > 1 and one.looks[0].state == "UP"
        if one.last.state != "DOWN" or not (one.used or went):
            continue
        down.append((one, (one.last.source.path, one.name) in unplugged))
    if any(not passive for _, passive in down):
        down = [(one, passive) for one, passive in down if not passive]
    for one, passive in down:
        facts.add(
            fact(
                "link.down",
                ranks=one.ranks,
                hosts=[one.host] if one.host else [],
                links=[one.link],
                cites=one.cites(),
                how="no-carrier" if passive else "set-down",
            )
        )


def _say_silent(
    interfaces: Iterable[_Interface],
    sockets: Mapping[tuple[str, str], list[LinkCounters]],
    waiting: bool,
    facts: Facts,
) -> None:
    """Links whose bytes stand still although somebody waits for them."""
    compared = [one for one in interfaces if one.used and len(one.looks) > 1]
    if not waiting:
        facts.unknowable.add("link.silent")
        return
    if not compared and not sockets:
        facts.unknowable.add("link.silent")
    up = [one for one in compared if one.last.state != "DOWN"]
    still = [one for one in up if (one.moved("rx_bytes", "tx_bytes") or 0) < _STILL]
    if up and len(still) == len(up):
        for one in still:
            facts.add(
                fact("link.silent", hosts=[one.host] if one.host else [], links=[one.link],
                     cites=one.cites(), how="bytes")
            )  # fmt: skip
    for (host, name), looks in sorted(sockets.items()):
        last = dict(looks[-1].counters)
        stuck = last.get("send_q", 0) > 0 and last.get("retrans_now", 0) > 0
        first = dict(looks[0].counters)
        stood = len(looks) > 1 and first.get("bytes_acked") == last.get("bytes_acked")
        if stuck and (last.get("retrans_now", 0) >= _BACKOFFS or stood):
            facts.add(
                fact(
                    "link.silent",
                    hosts=[host] if host else [],
                    links=[_ends(name)],
                    cites=[one.source.cite() for one in looks],
                    how="socket",
                    retransmits=last.get("retrans_now", 0),
                )
            )


def _ends(name: str) -> str:
    """Addresses of a socket's ends without their ports."""
    return "->".join(end.rpartition(":")[0] or end for end in name.split("->"))


def _say_errors(
    interfaces: Iterable[_Interface], stacks: Mapping[str, list[LinkCounters]], facts: Facts
) -> None:
    compared = False
    for one in interfaces:
        grown = one.moved(*_ERRORS)
        compared = compared or grown is not None
        if grown:
            facts.add(
                fact("link.errors", hosts=[one.host] if one.host else [], links=[one.link],
                     cites=one.cites(), how="interface", grown=grown)
            )  # fmt: skip
        drops, sent = one.moved("tx_drop"), one.moved("tx_packets")
        if drops and sent and not grown and drops * 1000 > sent:
            facts.add(
                fact("link.limited", hosts=[one.host] if one.host else [], links=[one.link],
                     cites=one.cites(), how="drops", drops=drops)
            )  # fmt: skip
    for host, looks in stacks.items():
        if len(looks) < 2:
            continue
        compared = True
        first, last = dict(looks[0].counters), dict(looks[-1].counters)
        lost = last.get("Tcp.RetransSegs", 0) - first.get("Tcp.RetransSegs", 0)
        sent = last.get("Tcp.OutSegs", 0) - first.get("Tcp.OutSegs", 0)
        if lost >= 10 and lost * 1000 >= max(sent, 1) * _LOST_PER_THOUSAND:
            facts.add(
                fact("link.errors", hosts=[host] if host else [],
                     cites=[one.source.cite() for one in looks], how="retransmissions",
                     lost=lost, sent=sent)
            )  # fmt: skip
    if not compared:
        facts.unknowable |= {"link.errors"}
