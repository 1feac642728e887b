"""Tells stuck from slow: what moved between two snapshots, and what the watch saw move."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.observations import (
    ProcessState,
    ProgressPage,
    RankStacks,
    RankTrace,
    Stall,
)
from fabwatch.watchdog.evidence.op_columns import how_many

YOUNG_S = 2.0
"""A wait younger than this at the moment of its dump is how a running job looks."""


@dataclass(slots=True)
class Motion:
    """Ranks whose operation counters moved, and ranks whose counters were seen to stand still.

    ``busy`` ranks did something (CPU, I/O, stack) without their counters moving. ``stood`` is
    True when the watch itself measured the standstill.
    """

    advanced: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    moving_stacks: set[int] = field(default_factory=set)
    stood: bool = False
    resolved: bool = False
    exit_trigger: bool = False

    def of(self, waiters: Iterable[int]) -> Known:
        """Whether these waiting ranks still get on: YES, NO, or nobody looked twice."""
        ranks = set(waiters)
        if self.resolved or ranks & self.advanced:
            return Known.YES
        if ranks & self.frozen or self.stood:
            return Known.NO
        return Known.UNKNOWN


def compare(
    traces: Iterable[RankTrace],
    pages: Iterable[ProgressPage],
    stacks: Mapping[int, list[RankStacks]],
    states: Mapping[int, list[ProcessState]],
    stalls: Iterable[Stall],
    facts: Facts,
) -> Motion:
    """Compare snapshots of the same source; add progress, cpu, io and stack facts."""
    motion = Motion()
    traces = list(traces)
    counters: dict[int, dict[str, list[tuple[int, Hashable, str]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for trace in traces:
        mark = (
            trace.ops[-1].record_id if trace.ops else -1,
            trace.status,
            how_many(trace.ops, lambda op: op.finished),
        )
        kind = f"trace:{trace.backend}:{_spelling(trace)}"
        counters[trace.rank][kind].append((trace.source.snapshot, mark, trace.source.cite()))
    for page in pages:
        counters[page.rank]["page"].append((page.source.snapshot, page.status, page.source.cite()))
    cites: dict[str, list[str]] = {"advanced": [], "frozen": []}
    for rank, kinds in sorted(counters.items()):
        verdict, seen = _moved(kinds.values())
        if verdict:
            motion.advanced.add(rank)
            cites["advanced"] += seen
        elif verdict is False:
            motion.frozen.add(rank)
            cites["frozen"] += seen
    _stacks(stacks, motion, facts)
    _resources(states, _dumped(traces), motion, facts)
    _watch(stalls, motion, cites)
    if motion.advanced:
        facts.add(fact("progress.advancing", ranks=motion.advanced, cites=cites["advanced"][:8]))
    if motion.frozen - motion.advanced:
        facts.add(
            fact(
                "progress.frozen", ranks=motion.frozen - motion.advanced, cites=cites["frozen"][:8]
            )
        )
    return motion


def _spelling(trace: RankTrace) -> str:
    return "json" if trace.source.path.endswith(".json") else "pickle"


def _moved(
    kinds: Iterable[list[tuple[int, Hashable, str]]],
) -> tuple[bool | None, list[str]]:
    """True: some counter moved; False: all stood; None: nothing was taken twice."""
    verdict: bool | None = None
    seen: list[str] = []
    for shots in kinds:
        if len({snapshot for snapshot, _, _ in shots}) < 2:
            continue
        verdict = bool(verdict) or len({mark for _, mark, _ in shots}) > 1
        seen += [cite for _, _, cite in shots]
    return verdict, seen


def _stacks(stacks: Mapping[int, list[RankStacks]], motion: Motion, facts: Facts) -> None:
    for rank, shots in sorted(stacks.items()):
        by_kind: dict[bool, list[RankStacks]] = defaultdict(list)
        for shot in shots:
            by_kind[shot.native].append(shot)
        for same in by_kind.values():
            if len({s.source.snapshot for s in same}) < 2:
                continue
            if len({s.main.frames if s.main else () for s in same}) > 1:
                motion.moving_stacks.add(rank)
                facts.add(fact("stack.moving", ranks=[rank], cites=[s.source.cite() for s in same]))
                break


_OWN_BYTES, _OWN_BYTES_PER_OP = 64 * 1024, 1024
"""What a rank that was asked for a dump with frames writes for it: not its own work."""


def _dumped(traces: Iterable[RankTrace]) -> dict[int, int]:
    """Rank -> bytes that it may have written between two looks because it was asked for a dump."""
    return {
        trace.rank: _OWN_BYTES + _OWN_BYTES_PER_OP * len(trace.ops)
        for trace in traces
        if not trace.source.path.endswith(".json") and trace.ops and trace.ops[-1].frames
    }


def _resources(
    states: Mapping[int, list[ProcessState]],
    dumped: Mapping[int, int],
    motion: Motion,
    facts: Facts,
) -> None:
    for rank, seen in sorted(states.items()):
        shots = sorted(seen, key=lambda s: s.source.snapshot)
        if len({s.source.snapshot for s in shots}) < 2:
            continue
        first, last = shots[0], shots[-1]
        if first.pid != last.pid:
            continue
        cites = (first.source.cite(), last.source.cite())
        if first.cpu_ticks is not None and last.cpu_ticks is not None:
            ticks = last.cpu_ticks - first.cpu_ticks
            if ticks > 0:
                facts.add(fact("cpu.advancing", ranks=[rank], cites=cites, ticks=ticks))
                motion.busy.add(rank)
        moved = sum(
            max(0, new - old)
            for old, new in (
                (first.read_bytes, last.read_bytes),
                (first.write_bytes, last.write_bytes),
            )
            if old is not None and new is not None
        )
        if moved > dumped.get(rank, 0):
            facts.add(fact("io.advancing", ranks=[rank], cites=cites, bytes=moved))
            motion.busy.add(rank)


def _watch(stalls: Iterable[Stall], motion: Motion, cites: dict[str, list[str]]) -> None:
    """The watch's own word. Its moving ranks may merely be busy, so only still ones count."""
    for stall in stalls:
        if stall.resolved:
            motion.resolved = True
        elif stall.trigger in ("stall", "timeout-near"):
            motion.stood = True
            still = set(stall.still_ranks)
            motion.frozen |= still - motion.advanced
            cites["frozen"].append(stall.source.cite())
        elif stall.trigger == "exit":
            motion.exit_trigger = True
        motion.busy |= set(stall.moving_ranks)
        if stall.trigger == "request" and stall.moving_ranks and not stall.still_ranks:
            motion.advanced |= set(stall.moving_ranks)
            cites["advanced"].append(stall.source.cite())
