"""Learn how often a job moves, and say from which silence on it is worth looking."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

FLOOR_S = 3.5
"""Never look before this much silence."""
STEADY_CAP_S = 5.5
"""Jobs that move every second or two are looked at by then at the latest."""
STEADY_GAP_S = 2.2
"""A job whose usual gap is below this is steady: steps of a second, seen by a page a second."""
UNKNOWN_S = 60.0
"""Silence before a rhythm is known."""
KNOWN_AFTER_S = 15.0
KNOWN_MOVES = 10
WINDOW = 240
_FORGET_S = 1800.0


@dataclass(slots=True)
class Rhythm:
    """Gaps between moments at which a job was seen to move. Times are monotonic seconds.

    ``longest``: the longest gap so far, first one excluded (start-up is no rhythm).
    ``resolved``: (when, length) of silences that were captured and turned out to end.
    """

    first: float | None = None
    last: float | None = None
    moves: int = 0
    longest: float = 0.0
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    resolved: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=16))

    def moved(self, at: float) -> None:
        """The job was seen to move at ``at``; earlier than the last time is ignored."""
        if self.last is None:
            self.first = self.last = at
            self.moves = 1
            return
        if at <= self.last:
            return
        gap = at - self.last
        self.last = at
        self.moves += 1
        self.gaps.append(gap)
        self.longest = max(self.longest, gap)

    def restart(self, at: float) -> None:
        """Forget the silence until now (the job was suspended, or its workers restarted)."""
        if self.last is not None and at > self.last:
            self.last = at

    def was_resolved(self, at: float, waited: float) -> None:
        """A captured silence of ``waited`` seconds ended by itself."""
        self.resolved.append((at, waited))

    @property
    def known(self) -> bool:
        """Whether there was enough to learn from."""
        if self.first is None or self.last is None:
            return False
        return self.moves > KNOWN_MOVES and self.last - self.first >= KNOWN_AFTER_S

    @property
    def steady(self) -> bool:
        """Whether nine of ten gaps are short."""
        return self.known and self._usual() <= STEADY_GAP_S

    def _usual(self) -> float:
        """The gap that nine of ten do not exceed."""
        ordered = sorted(self.gaps)
        return ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))] if ordered else 0.0

    def threshold(self, now: float, timeout: float | None = None) -> float:
        """Seconds of silence from which on evidence is frozen.

        ``timeout``: the job's own, if known: at latest at half of it (later where silences of
        that length were seen to end).
        """
        if not self.known:
            limit = UNKNOWN_S
        elif self.steady:
            limit = min(max(FLOOR_S, 3 * self._usual()), STEADY_CAP_S)
        else:
            limit = max(FLOOR_S, 3 * max(self.gaps))
        share = 0.5
        again = [length for at, length in self.resolved if now - at < _FORGET_S]
        if len(again) >= 2:  # it does this now and then: look only at longer ones
            limit = max(limit, 1.5 * max(again))
            share = 0.8
        if timeout is not None:
            limit = min(limit, max(timeout * share, 1.0))
        return limit
