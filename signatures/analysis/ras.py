"""Reads NCCL RAS: launch counts, missing and dead ranks; enough for a graph on RAS alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fabwatch.signatures.analysis.mismatch import vote
from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import RasComm, RasReport


@dataclass(slots=True)
class CommCounts:
    """One communicator over all polls: launches for each global rank, and whether they stood."""

    hash: str
    size: int
    totals: dict[int, int] = field(default_factory=dict)
    op: str = ""
    polls: int = 1
    frozen: bool = False
    cites: tuple[str, ...] = ()
    counts: tuple[dict[int, dict[str, int]], ...] = ()


@dataclass(slots=True)
class Ras:
    """What RAS tells the graph."""

    comms: list[CommCounts] = field(default_factory=list)
    missing: dict[int, str] = field(default_factory=dict)
    dead: dict[int, str] = field(default_factory=dict)
    advanced: set[int] = field(default_factory=set)
    frozen: set[int] = field(default_factory=set)


def _global(
    comm: RasComm, index: int, pid: int | None, world: int | None, pids: Mapping[int, int]
) -> int | None:
    if pid is not None and pid in pids:
        return pids[pid]
    if world is None or comm.size == world:
        return index
    return None


def read(
    reports: Iterable[RasReport], world: int | None, rank_of_pid: Mapping[int, int], facts: Facts
) -> Ras:
    """Collect counts of all polls; add count mismatches that stood still, and absent ranks."""
    out = Ras()
    polls: dict[str, dict[int, tuple[str, dict[int, tuple[tuple[str, int], ...]]]]] = {}
    sizes: dict[str, int] = {}
    for report in sorted(reports, key=lambda r: r.source.snapshot):
        cite = report.source.cite()
        for comm in report.comms:
            counts: dict[int, tuple[tuple[str, int], ...]] = {}
            for one in comm.ranks:
                rank = _global(comm, one.rank, one.pid, world, rank_of_pid)
                if rank is None:
                    continue
                if one.missing:
                    out.missing.setdefault(rank, cite)
                else:
                    counts[rank] = one.counts
            sizes[comm.hash] = comm.size
            # Text and JSON of one moment are one poll: the fuller one counts.
            moments = polls.setdefault(comm.hash, {})
            known = moments.get(report.source.snapshot)
            if known is None or _told(counts) > _told(known[1]):
                moments[report.source.snapshot] = (cite, counts)
        for _, pid in report.dead:
            if pid in rank_of_pid:
                out.dead.setdefault(rank_of_pid[pid], cite)
    for name, seen in polls.items():
        _one(name, sizes[name], [seen[at] for at in sorted(seen)], out, facts)
    gone = {**out.missing, **out.dead}
    if gone:
        facts.add(fact("process.absent", ranks=gone, cites=gone.values(), said_by="ras"))
    return out


def _told(counts: Mapping[int, tuple[tuple[str, int], ...]]) -> int:
    return sum(len(one) for one in counts.values())


def _one(
    name: str,
    size: int,
    seen: list[tuple[str, dict[int, tuple[tuple[str, int], ...]]]],
    out: Ras,
    facts: Facts,
) -> None:
    last = seen[-1][1]
    frozen = len(seen) > 1 and all(counts == last for _, counts in seen)
    cites = tuple(cite for cite, _ in seen)
    totals = {rank: sum(n for _, n in counts) for rank, counts in last.items()}
    op, low, high = _differing(last)
    counts = tuple({rank: dict(n) for rank, n in one.items()} for _, one in seen)
    out.comms.append(CommCounts(name, size, totals, op, len(seen), frozen, cites, counts))
    if len(seen) > 1:
        (out.frozen if frozen else out.advanced).update(last)
    if _all_moved([counts for _, counts in seen]):
        facts.add(fact("progress.advancing", ranks=last, cites=cites, said_by="ras"))
    if op and frozen:
        values = {rank: dict(counts).get(op, 0) for rank, counts in last.items()}
        ranks, tie = vote(values)
        facts.add(
            fact(
                "collective.count-mismatched",
                ranks=ranks,
                cites=cites,
                op=op,
                low=low,
                high=high,
                tie=tie,
                polls=len(seen),
            )
        )


def _all_moved(seen: Sequence[Mapping[int, tuple[tuple[str, int], ...]]]) -> bool:
    """Whether every rank launched more from each poll to the next one."""
    totals = [{rank: sum(n for _, n in one) for rank, one in counts.items()} for counts in seen]
    told = [one for one in totals if one]
    return len(told) > 1 and all(
        now.keys() == then.keys() and all(now[rank] > then[rank] for rank in now)
        for then, now in pairwise(told)
    )


def _differing(counts: Mapping[int, tuple[tuple[str, int], ...]]) -> tuple[str, int, int]:
    """The operation whose launches differ most, its least and its most."""
    best = ("", 0, 0)
    names = {op for one in counts.values() for op, _ in one}
    for op in sorted(names):
        values = [dict(one).get(op, 0) for one in counts.values()]
        if max(values) - min(values) > best[2] - best[1]:
            best = (op, min(values), max(values))
    return best


_SETTLED = 16
"""So many later operations without the one in question make a difference of counts an old one."""


def say_old_differences(
    ras: Ras, recent: Mapping[int, Sequence[str]], facts: Facts
) -> dict[int, tuple[str, ...]]:
    """Counts of one operation that differ for good while the job goes on: a call went astray.

    A difference in one poll may be a rank that is first by a moment. It is old when it stays while
    other counts grow, or when the recorders' last operations (``recent``, by rank, names as RAS
    spells them in lower case without underscores) do not hold the operation at all.
    """
    out: dict[int, tuple[str, ...]] = {}
    for comm in ras.comms:
        last = comm.counts[-1]
        if len(last) < 2:
            continue
        for op in sorted({name for one in last.values() for name in one}):
            values = {rank: one.get(op, 0) for rank, one in last.items()}
            if len(set(values.values())) < 2 or not _old(comm, op, values, recent):
                continue
            ranks, tie = vote(values)
            table = "; ".join(f"rank {r}: {op} {n}" for r, n in sorted(values.items())[:8])
            facts.add(
                fact(
                    "collective.type-mismatched",
                    ranks=ranks,
                    cites=comm.cites,
                    op=op,
                    tie=tie,
                    values=table,
                    finished=True,
                    said_by="ras",
                )
            )
            out.update(dict.fromkeys(ranks, comm.cites))
    return out


def _old(
    comm: CommCounts,
    op: str,
    values: Mapping[int, int],
    recent: Mapping[int, Sequence[str]],
) -> bool:
    name = op.lower()
    if all(len(recent.get(rank, ())) >= _SETTLED for rank in values):
        return not any(name in recent[rank] for rank in values)
    if len(comm.counts) < 2:
        return False
    first, last = comm.counts[0], comm.counts[-1]
    same = all(first.get(rank, {}).get(op, 0) == n for rank, n in values.items())
    grown = all(sum(last[r].values()) > sum(first.get(r, {}).values()) + 1 for r in values)
    return same and grown
