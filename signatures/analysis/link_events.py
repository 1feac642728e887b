"""Tells links that went down and came back long before the failure from those that did not.

A kernel log goes back to the boot: interfaces come up then, and cables were pulled last week. Only
a link that stayed down, or that went down near the failure, has anything to do with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import LogEvent

_BOOT_S = 900.0
"""So long after the boot interfaces still come up."""
_NEAR_S = 1800.0
"""A link that was back for longer than this before anybody waited did not begin the wait."""
_DOWN, _UP = "kernel.link-down", "kernel.link-up"
_SHAPED = "shape:link.down"


def settle(events: Iterable[LogEvent], facts: Facts) -> list[LogEvent]:
    """The events without those links that came back; add a flap for one that came back late."""
    events = list(events)
    by_link: dict[tuple[str, str, str], list[LogEvent]] = defaultdict(list)
    for event in events:
        if event.kind in (_DOWN, _UP) and (name := event.get("interface")):
            by_link[event.source.path, event.host or "", name].append(event)
    failed = _failed_at(events)
    over: set[tuple[str, int]] = set()
    for (path, host, name), mine in by_link.items():
        mine.sort(key=lambda event: event.line)
        if not any(event.kind == _DOWN for event in mine) or mine[-1].kind != _UP:
            continue  # it never went, or it stayed down
        back = mine[-1]
        over |= {(path, event.line) for event in mine if event.kind == _DOWN}
        if not _old(back, failed):
            facts.add(
                fact("ib-port.flapped", hosts=[host] if host else [], links=[name],
                     cites=[event.cite for event in mine[-4:]])
            )  # fmt: skip
    return [e for e in events if not (e.kind == _SHAPED and (e.source.path, e.line) in over)]


def _failed_at(events: list[LogEvent]) -> float | None:
    """When somebody began to wait: the first time-out less its length, or the first error."""
    starts = []
    for event in events:
        if event.when is None or event.source.kind == "kernel-log":
            continue
        if event.kind == "shape:network.error-reported":
            starts.append(event.when)
        elif (ms := event.get("timeout_ms") or event.get("ms")).isdigit() and len(ms) < 12:
            starts.append(event.when - int(ms) / 1000)
    return min(starts, default=None)


def _old(back: LogEvent, failed: float | None) -> bool:
    """Whether the link was back at the boot, or long before anybody waited."""
    uptime = back.get("uptime")
    try:
        if uptime and float(uptime) < _BOOT_S:
            return True
    except ValueError:
        pass
    return failed is not None and back.when is not None and failed - back.when > _NEAR_S
