"""Turns what the watch measured into facts: how long the wait is, and whether that is a failure."""

from __future__ import annotations

from collections.abc import Iterable

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import Stall


def look(stalls: Iterable[Stall], group_timeout_s: float | None, facts: Facts) -> float | None:
    """Add wait.exceeded where the wait passed its limit; return the longest wait in seconds.

    The limit is the watch's own; without one it is CONTRACT's rule, max(3 x the longest wait seen,
    min(60 s, half of the group's timeout)).
    """
    longest: float | None = None
    for stall in stalls:
        if stall.resolved or stall.waited_s is None:
            continue
        longest = max(longest or 0.0, stall.waited_s)
        limit = stall.limit_s
        if limit is None:
            half = group_timeout_s / 2 if group_timeout_s else 60.0
            limit = max(3 * (stall.longest_wait_s or 0.0), min(60.0, half))
        if stall.waited_s >= limit:
            facts.add(
                fact(
                    "wait.exceeded",
                    ranks=stall.still_ranks,
                    cites=[stall.source.cite()],
                    waited_s=round(stall.waited_s, 1),
                    limit_s=round(limit, 1),
                    phase=stall.phase,
                )
            )
    return longest
