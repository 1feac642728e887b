"""Decide from samples of all ranks whether the job moves, waits, or shows a failure.

Pure: no clock and no file is read here. Times are monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog.progress.rhythm import UNKNOWN_S, Rhythm
from fabwatch.watchdog.progress.sampling import Sample

MAIN_ACTIVE_NS_PER_S = 300_000
"""Main thread: more CPU time than this per second is work. A blocked one uses none at all."""
CPU_ACTIVE_NS_PER_S = 30_000_000
"""Whole process: helper threads, the probe's among them, use less than 3 %."""
IO_ACTIVE_BYTES_PER_S = 65_536

STOPPED_S = 1.2
STALE_S = 4.0
STALE_EARLY_S = 8.0
LEFT_S = 3.0
PARTIAL_S = 60.0
EARLY_BUSY_LIMIT_S = 300.0
ENOUGH_S = 60.0
BLIND_AFTER_S = 30.0
DEFAULT_TIMEOUT_S = {"nccl": 600.0, "gloo": 1800.0}


@dataclass(slots=True)
class RankTrack:
    """What is remembered of one rank (of one process: a restart begins a new one)."""

    pid: int
    sample: Sample
    at: float
    counted: float | None = None  # when it last began an operation
    active: float = 0.0  # when it last used CPU or did I/O
    main_active: float = 0.0
    stopped_since: float | None = None
    rhythm: Rhythm = field(default_factory=Rhythm)

    @property
    def pending(self) -> bool:
        """Whether its page shows an unfinished operation."""
        return self.sample.page is not None and self.sample.page.pending

    @property
    def exiting(self) -> bool:
        """Whether its interpreter shuts down."""
        return self.sample.page is not None and self.sample.page.exiting

    def idle_for(self, now: float) -> float:
        """Seconds for which its main thread did nothing, nor the process any work."""
        return now - max(self.active, self.main_active)


@dataclass(frozen=True, slots=True)
class Stillness:
    """Why evidence should be frozen now. ``why`` is for the log and for people."""

    trigger: str
    kind: str
    why: str
    last_progress: float
    still: tuple[int, ...]
    moving: tuple[int, ...]
    phase: str


class Monitor:
    """The state of the job's progress. Feed it with :meth:`observe`, ask :meth:`judge`."""

    def __init__(self, stall_after: float | None = None) -> None:
        """``stall_after``: seconds given by the user, None to learn them."""
        self.stall_after = stall_after
        self.timeout: float | None = None
        self.ranks: dict[int, RankTrack] = {}
        self.counts = Rhythm()  # any rank's counters
        self.works = Rhythm()  # the rank that has been idle for longest
        self.left: dict[int, float] = {}  # ranks that ended with code 0
        self.began: float | None = None
        self.now = 0.0
        self.suspended = False
        self._flaps: dict[str, int] = {}

    # -------------------------------------------------------------- feeding

    def observe(self, now: float, samples: Iterable[Sample], *, suspended: bool = False) -> None:
        """Take in one look at all living ranks. ``suspended``: the user stopped the whole job."""
        if self.began is None:
            self.began = now
        self.now = now
        alive = set()
        for one in samples:
            alive.add(one.rank)
            self._take(now, one)
        for gone in set(self.ranks) - alive:
            del self.ranks[gone]
        if suspended or self.suspended:
            self._pause(now)
        self.suspended = suspended
        if self.ranks:
            self.works.moved(min(max(t.active, t.main_active) for t in self.ranks.values()))

    def _take(self, now: float, one: Sample) -> None:
        track = self.ranks.get(one.rank)
        if track is None or track.pid != one.pid:
            track = RankTrack(one.pid, one, now, active=now, main_active=now)
            self.ranks[one.rank] = track
            if one.page is not None and one.page.counters:
                self._counted(track, min(one.page.ticked, now))
            return
        before, seconds = track.sample, max(now - track.at, 0.001)
        if one.run_ns - before.run_ns > MAIN_ACTIVE_NS_PER_S * seconds:
            track.main_active = now
        if (
            one.cpu_ns - before.cpu_ns > CPU_ACTIVE_NS_PER_S * seconds
            or one.io_bytes - before.io_bytes > IO_ACTIVE_BYTES_PER_S * seconds
        ):
            track.active = now
        if one.page is not None and one.page.began_since(before.page):
            self._counted(track, min(one.page.ticked, now))
        if one.state in "Tt":
            track.stopped_since = now if track.stopped_since is None else track.stopped_since
        else:
            track.stopped_since = None
        track.sample, track.at = one, now

    def _counted(self, track: RankTrack, at: float) -> None:
        track.counted = at
        track.rhythm.moved(at)
        self.counts.moved(at)

    def _pause(self, now: float) -> None:
        self.counts.restart(now)
        self.works.restart(now)
        for track in self.ranks.values():
            track.rhythm.restart(now)
            track.active = track.main_active = now
            track.stopped_since = None

    def restarted(self, now: float) -> None:
        """The launcher has started new workers: what follows is a start-up again."""
        resolved = self.counts.resolved
        self.ranks, self.left, self._flaps = {}, {}, {}
        self.counts, self.works = Rhythm(resolved=resolved), Rhythm()
        self.began = self.now = now

    # -------------------------------------------------------------- asking

    @property
    def phase(self) -> str:
        """start, first-step, steady or teardown; what a rank does inside is seen by capture."""
        if self.left or any(t.exiting for t in self.ranks.values()):
            return "teardown"
        if self._blind:
            return "start" if self._starting or not self.works.known else "steady"
        return "steady" if self.counts.known else "first-step"

    @property
    def _blind(self) -> bool:
        """Whether counters say nothing: no probe, or a job of nothing but send and receive."""
        if self.counts.last is None:
            return True
        quiet = self.now - self.counts.last > BLIND_AFTER_S
        return (
            quiet
            and not self.counts.known
            and self.works.known
            and not any(track.pending for track in self.ranks.values())
        )

    @property
    def _starting(self) -> bool:
        """Whether the ranks have no group yet, or too little of the job was seen to judge it."""
        paged = any(track.sample.page is not None for track in self.ranks.values())
        young = self.began is None or self.now - self.began < BLIND_AFTER_S
        return self.counts.last is None and (paged or young)

    @property
    def last_progress(self) -> float:
        """When the job was last seen to move."""
        if self.counts.last is not None and not self._blind:
            return self.counts.last
        if self.works.last is not None:
            return self.works.last
        return self.began or 0.0

    def waited(self, now: float) -> float:
        """Seconds since the last progress."""
        return max(now - self.last_progress, 0.0)

    def moving(self, now: float, within: float = 3.0) -> tuple[int, ...]:
        """Ranks that use CPU or do I/O."""
        return tuple(sorted(r for r, t in self.ranks.items() if t.idle_for(now) < within))

    def still(self, now: float, within: float = 3.0) -> tuple[int, ...]:
        """Ranks that do neither."""
        return tuple(sorted(r for r, t in self.ranks.items() if t.idle_for(now) >= within))

    @property
    def longest_wait(self) -> float:
        """The longest silence that ended, since the first progress."""
        ended = self.counts.longest if not self._blind else self.works.longest
        return max([ended, *(length for _, length in self.counts.resolved)])

    def limit(self, now: float) -> float:
        """Seconds of waiting from which on it is a failure (CONTRACT.md).

        Before there is a rhythm, ranks that work (compile, load) get more time.
        """
        half = (self.timeout or self._default_timeout()) / 2
        limit = max(3 * self.longest_wait, min(ENOUGH_S, half))
        rhythm = self.works if self._blind else self.counts
        if not rhythm.known and self.moving(now):
            limit = max(limit, min(EARLY_BUSY_LIMIT_S, half))
        return limit

    def _default_timeout(self) -> float:
        keys = {c[0].partition(":")[0] for t in self.ranks.values() if t.sample.page
                for c in t.sample.page.counters}  # fmt: skip
        found = [DEFAULT_TIMEOUT_S[k] for k in keys if k in DEFAULT_TIMEOUT_S]
        return min(found) if found else max(DEFAULT_TIMEOUT_S.values())

    def wants_frozen(self, now: float) -> set[int]:
        """Ranks of which it is worth asking whether their cgroup is frozen."""
        return {
            r
            for r, t in self.ranks.items()
            if t.idle_for(now) >= 1.5 and (t.sample.page is None or t.sample.page.stale(now))
        }

    def judge(self, now: float) -> Stillness | None:
        """The reason to freeze evidence now, or None."""
        if not self.ranks or self.suspended:
            return None
        for check in (self._stopped, self._stale, self._departed, self._silent, self._partly):
            found = check(now)
            if found is not None:
                return found
        return None

    def flapped(self, kind: str) -> None:
        """A capture for this kind of evidence turned out to be nothing: be slower next time."""
        self._flaps[kind] = min(self._flaps.get(kind, 0) + 1, 6)

    def _patience(self, kind: str, seconds: float) -> float:
        return seconds * 2.0 ** self._flaps.get(kind, 0)

    def _found(self, now: float, trigger: str, kind: str, why: str) -> Stillness:
        return Stillness(
            trigger, kind, why, self.last_progress, self.still(now), self.moving(now), self.phase
        )

    def _stopped(self, now: float) -> Stillness | None:
        """A rank in state T, or in a frozen cgroup."""
        patience = self._patience("stopped", STOPPED_S)
        for rank, track in self.ranks.items():
            since = track.stopped_since
            if since is not None and track.sample.state == "T" and now - since >= patience:
                return self._found(now, "stall", "stopped", f"rank {rank} is stopped (state T)")
            if track.sample.frozen and track.idle_for(now) >= max(patience, 2.0):
                return self._found(now, "stall", "stopped", f"rank {rank}'s cgroup is frozen")
        return None

    def _stale(self, now: float) -> Stillness | None:
        """A rank whose interpreter runs no other thread, while somebody waits for it."""
        base = STALE_S if self.counts.known else STALE_EARLY_S
        patience = self._patience("stale", base)
        stale = [
            r
            for r, t in self.ranks.items()
            if t.sample.page is not None and not t.exiting and t.sample.page.age(now) >= patience
        ]
        if not stale or len(stale) == len(self.ranks) > 1:
            return None  # all at once: the machine was busy or asleep, not one interpreter
        waiting = [
            r for r, t in self.ranks.items()
            if r not in stale and t.pending and now - (t.counted or 0.0) >= patience / 2
        ]  # fmt: skip
        if not waiting:
            return None
        names = ", ".join(map(str, stale))
        return self._found(now, "stall", "stale", f"rank {names} runs no Python thread")

    def _departed(self, now: float) -> Stillness | None:
        """A rank has left, or is leaving, while another is inside an operation."""
        leaving = [r for r, t in self.ranks.items() if t.exiting]
        if not leaving and not self.left:
            return None
        patience = self._patience("left", LEFT_S)
        waiting = [
            r for r, t in self.ranks.items()
            if not t.exiting and t.pending and now - (t.counted or 0.0) >= patience
        ]  # fmt: skip
        if not waiting:
            return None
        who = ", ".join(map(str, sorted({*leaving, *self.left})))
        names = ", ".join(map(str, waiting))
        return self._found(now, "stall", "left", f"rank {who} left while rank {names} waits")

    def _silent(self, now: float) -> Stillness | None:
        """Nothing moves, and somebody waits."""
        waited = self.waited(now)
        given = self.stall_after
        limit = given if given is not None else self.counts.threshold(now, self.timeout)
        idle_limit = given if given is not None else self.works.threshold(now, self.timeout)
        idle = max((t.idle_for(now) for t in self.ranks.values()), default=0.0)
        if self._blind:
            if given is None and self._starting:
                idle_limit = max(idle_limit, UNKNOWN_S)
            if idle < idle_limit or (given is None and not self.works.known and self._busy(now)):
                return None
            return self._found(now, "stall", "idle", f"a rank has done nothing for {idle:.1f} s")
        if waited < limit:
            return None
        if any(t.pending for t in self.ranks.values()):
            why = f"no operation began or ended for {waited:.1f} s"
            without = self.counts.threshold(now)
            near = given is None and limit < without
            return self._found(now, "timeout-near" if near else "stall", "silent", why)
        if idle >= (limit if self.counts.steady else max(limit, min(idle_limit, UNKNOWN_S))):
            return self._found(now, "stall", "idle", f"a rank has done nothing for {idle:.1f} s")
        return None

    def _busy(self, now: float) -> bool:
        """Whether any rank works."""
        return bool(self.moving(now, 5.0))

    def _partly(self, now: float) -> Stillness | None:
        """One rank is stuck in an operation while others go on without it."""
        for rank, track in self.ranks.items():
            if not track.pending or track.counted is None or not track.rhythm.known:
                continue
            limit = max(PARTIAL_S, 10 * max(track.rhythm.gaps))
            limit = min(limit, (self.timeout or self._default_timeout()) / 2)
            if now - track.counted >= self._patience("partly", limit):
                why = f"rank {rank} has been inside one operation for {now - track.counted:.0f} s"
                return self._found(now, "stall", "partly", why)
        return None


def summary(ranks: Mapping[int, RankTrack], now: float) -> list[dict[str, object]]:
    """One line for each rank, for `fabwatch capture` and the status request."""
    return [
        {
            "rank": rank,
            "pid": track.pid,
            "state": track.sample.state,
            "pending": track.pending,
            "counted_s": None if track.counted is None else round(now - track.counted, 2),
            "idle_s": round(track.idle_for(now), 2),
            "page_age_s": round(track.sample.page.age(now), 2) if track.sample.page else None,
        }
        for rank, track in sorted(ranks.items())
    ]
