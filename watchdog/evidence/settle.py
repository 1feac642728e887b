"""Settle what only all artefacts together tell: whose pid it is, and which snapshot came first."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from fabwatch.watchdog.evidence.ledger import Evidence
from fabwatch.watchdog.evidence.observations import (
    Exit,
    GpuReport,
    JobShape,
    LinkCounters,
    LogEvent,
    Observation,
    Op,
    ProcessState,
    ProgressPage,
    PythonError,
    RankStacks,
    RankTrace,
    RasReport,
    Source,
)
from fabwatch.watchdog.evidence.op_columns import how_many, newest_ns

_SAME_MOMENT_S = 1.0
_TIMED = re.compile(r"\d[\d\-_:.TZ]{7,}")


def settle(
    observations: Iterable[Observation],
    looked: Iterable[Source],
    ledger: dict[str, Evidence],
    modified: dict[str, float],
    explicit: set[str],
) -> tuple[list[Observation], tuple[Source, ...]]:
    """Fill in ranks, times and snapshot numbers, and drop copies.

    ``ledger`` maps a label to its ledger line, ``modified`` a label to its file time in epoch
    seconds, ``explicit`` holds labels whose snapshot number is said by folder or ledger.
    """
    todo = _believed(list(observations))
    pids = _pids(todo)
    todo = [_owned(one, pids) for one in todo]
    renumber = _snapshots(todo, modified, explicit)
    done: list[Observation] = []
    for one in _without_copies(todo, renumber):
        done.append(_placed(one, ledger, renumber))
    sources = [_place(source, ledger, renumber) for source in looked]
    # A stack whose rank only its pid tells was also looked at for that rank.
    sources += [one.source for one in done if isinstance(one, RankStacks)]
    sources += [
        one.source
        for one in done
        if isinstance(one, ProcessState) and (one.rank is not None or not one.line)
    ]
    return done, tuple(dict.fromkeys(sources))


# ------------------------------------------------------------------ who is who


def _believed(observations: list[Observation]) -> list[Observation]:
    """Drop ranks that come from a communicator which is not the whole job.

    NCCL's log tells the rank in a communicator. It is the rank in the job only if no larger
    communicator or group is known and no other process claims the same one.
    """
    world = 0
    claims: dict[tuple[int, int], set[tuple[str, int]]] = defaultdict(set)
    for one in observations:
        if isinstance(one, JobShape):
            world = max(world, one.world_size or 0, *(rank + 1 for rank, _, _ in one.ranks), 0)
            if one.source.kind == "nccl-log":
                for rank, host, pid in one.ranks:
                    claims[one.world_size or 0, rank].add((host, pid))
        elif isinstance(one, RankTrace):
            for group in one.groups:
                world = max(world, max(group.ranks, default=-1) + 1)
        elif isinstance(one, LogEvent | PythonError | Exit) and one.rank is not None:
            world = max(world, one.rank + 1)
    doubted = {size for (size, _), who in claims.items() if len(who) > 1}
    out: list[Observation] = []
    for one in observations:
        if isinstance(one, JobShape) and one.source.kind == "nccl-log" and one.ranks:
            size = one.world_size or 0
            if size < world or size in doubted:
                one = dataclasses.replace(one, world_size=None, ranks=())
        out.append(one)
    return out


def _pids(observations: list[Observation]) -> dict[int, int]:
    """Pid -> rank, only where no two hosts contradict each other."""
    found: dict[int, set[int]] = defaultdict(set)
    for one in observations:
        if isinstance(one, JobShape):
            for rank, _, pid in one.ranks:
                if pid > 0:
                    found[pid].add(rank)
        elif (
            isinstance(one, ProcessState | ProgressPage | RankStacks | Exit)
            and one.rank is not None
            and one.pid
        ):
            found[one.pid].add(one.rank)
    return {pid: next(iter(ranks)) for pid, ranks in found.items() if len(ranks) == 1}


def _owned(one: Observation, pids: dict[int, int]) -> Observation:
    if isinstance(one, RankStacks | ProcessState) and one.rank is None and one.pid in pids:
        rank = pids[one.pid]
        return dataclasses.replace(
            one, rank=rank, source=dataclasses.replace(one.source, rank=rank)
        )
    if isinstance(one, LogEvent) and one.rank is None:
        for key in ("rank_pid", "pid"):
            text = one.get(key)
            if text.isdigit() and len(text) < 12 and int(text) in pids:
                return dataclasses.replace(one, rank=pids[int(text)])
    return one


# ------------------------------------------------------------------ snapshots

_Key = tuple[Any, ...]


def _group_of(one: Observation) -> _Key | None:
    """Observations with one key are the same thing taken at different times."""
    if isinstance(one, RankTrace):
        return ("trace", one.rank, one.backend in ("", "gloo", "c10d"))
    if isinstance(one, ProgressPage):
        return ("page", one.rank)
    if isinstance(one, RankStacks):
        if one.rank is None and one.pid is None:
            return None
        return ("stack", one.rank, one.pid if one.rank is None else None, one.native)
    if isinstance(one, ProcessState):
        return ("process", one.rank, one.pid)
    if isinstance(one, GpuReport):
        return ("gpu", one.source.host)
    if isinstance(one, LinkCounters):
        return ("link", one.source.host, one.name)
    if isinstance(one, RasReport):
        # Names of polls taken one after the other differ in their time only.
        return ("ras", one.source.host, _TIMED.sub("", one.source.path.rsplit("/", 1)[-1]))
    return None


def _progress(one: Observation) -> _Key:
    """What only ever grows between two takings of the same thing; () when nothing does."""
    if isinstance(one, RankTrace):
        last = one.ops[-1] if one.ops else None
        return (
            newest_ns(one.ops),
            last.record_id if last else -1,
            sum(marks.enqueued for _, marks in one.status),
            sum(marks.completed for _, marks in one.status),
            how_many(one.ops, _finished),
        )
    if isinstance(one, ProcessState):
        return (one.cpu_ticks or 0, one.read_bytes or 0, one.write_bytes or 0)
    if isinstance(one, LinkCounters):
        return tuple(value for _, value in one.counters[:8])
    if isinstance(one, ProgressPage):
        return (one.tick,)
    return ()


def _snapshots(
    observations: list[Observation], modified: dict[str, float], explicit: set[str]
) -> dict[str, int]:
    """Label -> snapshot number, for artefacts whose number nobody said."""
    groups: dict[_Key, list[Observation]] = defaultdict(list)
    for one in observations:
        key = _group_of(one)
        if key is not None:
            groups[key].append(one)
    numbers: dict[str, int] = {}
    for members in groups.values():
        paths = {one.source.path for one in members}
        if len(paths) < 2 or paths & explicit:
            continue
        ordered = sorted(
            members,
            key=lambda one: (
                _progress(one),
                one.source.taken or modified.get(one.source.path, 0.0),
                one.source.path,
            ),
        )
        number = 0
        previous: Observation | None = None
        for one in ordered:
            if previous is None or not _same_moment(previous, one, modified):
                number += 1
            numbers[one.source.path] = max(numbers.get(one.source.path, 0), number)
            previous = one
    return numbers


def _same_moment(a: Observation, b: Observation, modified: dict[str, float]) -> bool:
    """Two artefacts that show one moment: one is a copy, or the same in another format."""
    if a.source.path == b.source.path:
        return True
    one, other = a.source.taken, b.source.taken
    if isinstance(a, RasReport) and one and other and abs(one - other) >= _SAME_MOMENT_S:
        return False
    if not isinstance(a, RankTrace | ProgressPage):
        return _content(a) == _content(b)
    if _progress(a) != _progress(b):
        return False
    if a.source.path.rsplit("/", 1)[-1] != b.source.path.rsplit("/", 1)[-1]:
        return True  # pickle and JSON of one capture
    first, second = modified.get(a.source.path), modified.get(b.source.path)
    return first is None or second is None or abs(first - second) < _SAME_MOMENT_S


_NOWHERE = Source("", "")


def _content(one: Observation) -> Observation:
    return dataclasses.replace(one, source=_NOWHERE)


# ------------------------------------------------------------------ copies and places


def _finished(op: Op) -> bool:
    return op.finished


def _has_frames(op: Op) -> bool:
    return bool(op.frames)


def _richness(trace: RankTrace) -> tuple[int, int, int]:
    return (
        how_many(trace.ops, _has_frames),
        len(trace.ops),
        0 if trace.truncated else 1,
    )


def _without_copies(
    observations: list[Observation], renumber: dict[str, int]
) -> Iterable[Observation]:
    """Drop what says the same thing twice: copied exits and exceptions, one dump in two formats."""
    best: dict[_Key, RankTrace] = {}
    for one in observations:
        if isinstance(one, RankTrace):
            key = _trace_key(one, renumber)
            if key not in best or _richness(one) > _richness(best[key]):
                best[key] = one
    seen: set[_Key] = set()
    for one in observations:
        if isinstance(one, RankTrace):
            if best[_trace_key(one, renumber)] is one:
                yield one
        elif isinstance(one, Exit):
            key = ("exit", one.rank, one.pid, one.code, one.signal, one.order is None)
            if key not in seen:
                seen.add(key)
                yield one
        elif isinstance(one, PythonError) and one.source.kind == "exception":
            key = ("error", one.rank, one.type, one.text, one.when)
            if key not in seen:
                seen.add(key)
                yield one
        else:
            yield one


def _trace_key(one: RankTrace, renumber: dict[str, int]) -> _Key:
    number = renumber.get(one.source.path, one.source.snapshot)
    return (*(_group_of(one) or ()), number, _progress(one))


def _placed(one: Observation, ledger: dict[str, Evidence], renumber: dict[str, int]) -> Observation:
    source = _place(one.source, ledger, renumber)
    return one if source is one.source else dataclasses.replace(one, source=source)


def _place(source: Source, ledger: dict[str, Evidence], renumber: dict[str, int]) -> Source:
    line = ledger.get(source.path)
    number = renumber.get(source.path, source.snapshot)
    taken = source.taken
    if taken is None and line is not None and line.started > 0:
        taken = line.started + line.took
    if number == source.snapshot and taken == source.taken:
        return source
    return dataclasses.replace(source, snapshot=number, taken=taken)
