"""Says which processes can do nothing any more: stopped, frozen, in D state, without the GIL."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import (
    Frame,
    LogEvent,
    ProcessState,
    ProgressPage,
    RankStacks,
    ThreadStack,
)

_STORAGE = re.compile(
    r"nfs|rpc_wait|lustre|ll_|ptlrpc|ceph|gpfs|fuse|io_schedule|jbd2|xfs_|ext4|btrfs|blk_|folio_wait"
    r"|wait_on_page|wait_on_buffer|dio_|nvme|filemap|writeback|balance_dirty"
)
_DEBUGGER = re.compile(r"(?:\S*/)?(?:cuda-)?(?:gdb|lldb|strace|ltrace|rr)\b")
_GIL_TEXT = re.compile(r"Could not acquire GIL within|GIL induced hang", re.I)


@dataclass(slots=True)
class Processes:
    """What /proc, pages and stacks say of the processes. Values are citations."""

    stopped: dict[int, tuple[str, ...]] = field(default_factory=dict)
    disk_wait: dict[int, tuple[str, ...]] = field(default_factory=dict)
    gil_held: dict[int, tuple[str, ...]] = field(default_factory=dict)
    sleeping: set[int] = field(default_factory=set)
    alive: set[int] = field(default_factory=set)
    doubts: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def look(
    states: Iterable[ProcessState],
    pages: Iterable[ProgressPage],
    stacks: Mapping[int, list[RankStacks]],
    events: Iterable[LogEvent],
    rank_of_pid: Mapping[int, int],
    facts: Facts,
    ending: Collection[int] = (),
) -> Processes:
    """Add process facts and return what the graph needs of them.

    ``ending``: ranks that have raised or ended. An interpreter on its way out runs no thread but
    its main one, which is not a held GIL.
    """
    out = Processes()
    by_rank: dict[int, list[ProcessState]] = defaultdict(list)
    states = list(states)
    debuggers = {state.pid for state in states if _DEBUGGER.match(state.command)}
    for state in states:
        rank = state.rank if state.rank is not None else rank_of_pid.get(state.pid)
        if rank is not None:
            by_rank[rank].append(state)
    for rank, seen in sorted(by_rank.items()):
        seen.sort(key=lambda s: s.source.snapshot)
        _states(rank, seen, debuggers, out, facts)
    _running(stacks, facts)
    _gil(pages, stacks, events, out, facts, ending)
    return out


def _running(stacks: Mapping[int, list[RankStacks]], facts: Facts) -> None:
    """Ranks of which a thread was on a CPU when its stack was taken: they are not stopped."""
    for rank, shots in sorted(stacks.items()):
        found = [s.source.cite(t.line or None) for s in shots for t in s.threads if t.active]
        if found:
            facts.add(fact("thread.running", ranks=[rank], cites=found[:4]))


def _states(
    rank: int,
    seen: list[ProcessState],
    debuggers: Collection[int],
    out: Processes,
    facts: Facts,
) -> None:
    living = [s for s in seen if s.state not in ("", "X", "Z")]
    if not living:
        return
    last = living[-1]
    cites = tuple(s.source.cite(s.line or None) for s in living)
    if seen[-1] is last:
        out.alive.add(rank)
    halted = [s for s in living if _is_halted(s, living, debuggers)]
    if halted and last in halted:
        out.stopped[rank] = cites
        facts.add(
            fact(
                "process.stopped",
                ranks=[rank],
                cites=cites,
                state=last.state,
                how="frozen" if last.frozen else "stopped",
                tracer=last.tracer_pid or None,
                cgroup=last.cgroup if last.frozen else None,
            )
        )
    elif halted:
        out.doubts.append((f"rank {rank} was stopped at first and runs again later", cites))
    if all(s.state == "D" for s in living):
        out.disk_wait[rank] = cites
        facts.add(
            fact(
                "process.uninterruptible",
                ranks=[rank],
                cites=cites,
                wchan=last.wchan,
                snapshots=len(living),
            )
        )
        place = " ".join((last.wchan, *last.kernel_stack))
        if _STORAGE.search(place):
            facts.add(fact("storage.stalled", ranks=[rank], cites=cites, wchan=last.wchan))
    if all("nanosleep" in s.wchan for s in living):
        out.sleeping.add(rank)


def _is_halted(one: ProcessState, living: list[ProcessState], debuggers: Collection[int]) -> bool:
    """Stopped or frozen. A tracing stop counts when one tracer, or a person's debugger, keeps it.

    Whoever takes stacks holds the process for a moment, and another collector then sees state t.
    """
    if one.frozen or one.state == "T":
        return True
    if one.state != "t":
        return False
    if not one.tracer_pid or one.tracer_pid in debuggers:
        return True
    return len(living) > 1 and all(
        s.state == "t" and s.tracer_pid == one.tracer_pid for s in living
    )


def _gil(
    pages: Iterable[ProgressPage],
    stacks: Mapping[int, list[RankStacks]],
    events: Iterable[LogEvent],
    out: Processes,
    facts: Facts,
    ending: Collection[int],
) -> None:
    by_rank: dict[int, list[ProgressPage]] = defaultdict(list)
    for page in pages:
        by_rank[page.rank].append(page)
    told = {e.rank: e.cite for e in events if e.rank is not None and _GIL_TEXT.search(e.text)}
    for rank, seen in sorted(by_rank.items()):
        stale = [p for p in seen if p.stale]
        if stale and len(stale) == len(seen):
            cites = tuple(p.source.cite() for p in stale)
            age = round(max(p.age_s for p in stale), 1)
            facts.add(fact("page.stale", ranks=[rank], cites=cites, age_s=age))
    for rank in sorted(set(by_rank) | set(stacks) | set(told)):
        if rank in out.stopped or rank in out.disk_wait or (rank in ending and rank not in told):
            continue
        pages_here = by_rank.get(rank, [])
        if pages_here and not all(p.stale for p in pages_here):
            continue
        shots = sorted(stacks.get(rank, []), key=lambda s: s.source.snapshot)
        holders = [(s, t) for s in shots if (t := _holder(s)) is not None]
        snapshots = {s.source.snapshot for s in shots}
        same = (
            bool(holders)
            and {s.source.snapshot for s, _ in holders} == snapshots
            and len({_place(t) for _, t in holders}) == 1
        )
        cites = tuple(s.source.cite(t.line or None) for s, t in holders)
        if rank in told:
            cites = (told[rank], *cites)
        elif pages_here:
            if not (same and _one_silence(pages_here)):
                continue
            cites = (*(p.source.cite() for p in pages_here), *cites)
        elif not (same and len(snapshots) > 1):
            continue
        frame = next((str(t.frames[0]) for _, t in holders if t.frames), "")
        out.gil_held[rank] = cites
        facts.add(
            fact("gil.held", ranks=[rank], cites=cites, frame=frame, snapshots=len(snapshots))
        )


_LONG_S = 10.0
"""One look suffices at a page that is older than this."""


def _one_silence(pages: Sequence[ProgressPage]) -> bool:
    """Whether a page stood still for longer than a call that keeps the GIL for some seconds."""
    if len({p.tick for p in pages}) > 1:
        return False  # it ticked in between
    return len({p.source.snapshot for p in pages}) > 1 or max(p.age_s for p in pages) >= _LONG_S


def _holder(stack: RankStacks) -> ThreadStack | None:
    """The thread with the GIL. One without Python frames is the interpreter starting or ending."""
    return next((t for t in stack.threads if t.gil and any(map(_is_python, t.frames))), None)


def _is_python(frame: Frame) -> bool:
    return frame.file.endswith(".py") or frame.file.startswith("<")


def _place(thread: ThreadStack) -> tuple[object, ...]:
    top = next((f for f in thread.frames if f.file.endswith(".py")), None)
    if top is None:
        return ("", thread.os_tid)
    return (top.function, top.file, top.line, thread.os_tid)
