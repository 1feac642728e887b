"""Brings recorder dumps to one shape: who is in which group, how far everyone got, what is pending.

Group keys are ``backend:name`` because two backends of one process group count on their own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from fabwatch.signatures.analysis.lanes import Lanes
from fabwatch.watchdog.evidence.observations import (
    Frame,
    Group,
    GroupStatus,
    JobShape,
    Op,
    ProgressPage,
    RankTrace,
)
from fabwatch.watchdog.evidence.op_columns import OpColumns, how_many

GLOO_LIKE = frozenset({"gloo", "mpi", "ucc", "fake", ""})
"""Backends whose pg_status counts operation ids and says nothing across ranks."""

DEFAULT_GROUPS = frozenset({"0", "default_pg", "default"})


@dataclass(slots=True)
class GroupInfo:
    """One group. ``whole`` is False when only the members that left entries are known."""

    key: str
    name: str
    desc: str = ""
    members: tuple[int, ...] = ()
    whole: bool = False
    p2p: bool = False

    @property
    def label(self) -> str:
        """The name that an engineer knows."""
        return self.desc if self.desc not in ("", "undefined") else self.name


@dataclass(slots=True)
class Marks:
    """High-water marks of one rank in one group.

    ``firm`` when the evidence was complete enough for "never entered" to be a statement and not
    a gap.
    """

    entered: int = -1
    started: int = -1
    finished: int = -1
    firm: bool = False


@dataclass(slots=True)
class RankLog:
    """One rank's recorder: marks for each group key, pending operations oldest first."""

    rank: int
    trace: RankTrace
    marks: dict[str, Marks] = field(default_factory=dict)
    pending: list[tuple[str, Op]] = field(default_factory=list)

    def cite(self, op: Op | None = None) -> str:
        """Where this stands."""
        return self.trace.source.cite(None if op is None else f"entries[{op.index}]")


@dataclass(slots=True)
class Recorded:
    """All recorders of a job at one moment, normalised."""

    groups: dict[str, GroupInfo] = field(default_factory=dict)
    logs: dict[int, RankLog] = field(default_factory=dict)
    by_seq: dict[str, Lanes] = field(default_factory=dict)
    world_size: int | None = None

    def marks(self, key: str, rank: int) -> Marks | None:
        """How far ``rank`` got in a group, None when nothing tells."""
        log = self.logs.get(rank)
        return None if log is None else log.marks.get(key)


def choose(traces: Iterable[RankTrace], snapshot: int | None = None) -> dict[int, list[RankTrace]]:
    """The traces to believe for each rank: one for each recorder, of one snapshot.

    Of several dumps of one recorder (JSON beside pickle) the one that saw most is taken, with
    frames from whichever has them.
    """
    ranked: dict[int, dict[int, list[RankTrace]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        ranked[trace.rank][trace.source.snapshot].append(trace)
    out: dict[int, list[RankTrace]] = {}
    for rank, shots in ranked.items():
        if snapshot is not None and snapshot not in shots:
            continue
        shot = min(shots) if snapshot is None else snapshot
        by_recorder: dict[str, list[RankTrace]] = defaultdict(list)
        for trace in shots[shot]:
            by_recorder[trace.backend].append(trace)
        if len(by_recorder) > 1:
            by_recorder.pop("", None)
        out[rank] = [_best(same) for same in by_recorder.values()]
    return out


def _best(traces: Sequence[RankTrace]) -> RankTrace:
    def seen(trace: RankTrace) -> tuple[int, int, bool]:
        newest = trace.ops[-1].record_id if trace.ops else -1
        return newest, len(trace.ops), bool(trace.ops and trace.ops[-1].frames)

    return max(traces, key=seen)


def call_frames(traces: Iterable[RankTrace]) -> dict[int, dict[tuple[str, int], tuple[Frame, ...]]]:
    """Rank -> (backend, record id) -> frames, from every dump that carries frames.

    Of a rank's only dump one operation stands for all: the others carry their own.
    """
    by_rank: dict[int, list[RankTrace]] = defaultdict(list)
    for trace in traces:
        by_rank[trace.rank].append(trace)
    out: dict[int, dict[tuple[str, int], tuple[Frame, ...]]] = {}
    for rank, mine in by_rank.items():
        found = out[rank] = {}
        for trace in mine:
            if how_many(trace.ops, lambda op: bool(op.frames)):
                framed = ((op.backend, op.record_id, op.frames) for op in trace.ops if op.frames)
                for backend, record, frames in islice(framed, 1 if len(mine) == 1 else None):
                    found[(backend, record)] = frames
    return {rank: frames for rank, frames in out.items() if frames}


def world_size(
    shapes: Iterable[JobShape], pages: Iterable[ProgressPage], traces: Iterable[RankTrace]
) -> int | None:
    """The job's world size: manifest, page, else the default group of a recorder."""
    sizes = [s.world_size for s in shapes if s.world_size] + [
        p.world_size for p in pages if p.world_size
    ]
    if sizes:
        return Counter(sizes).most_common(1)[0][0]
    seen = set()
    best = 0
    for trace in traces:
        for group in trace.groups:
            is_default = group.name in DEFAULT_GROUPS or group.desc in DEFAULT_GROUPS
            if is_default and group.ranks and id(group.ranks) not in seen:
                seen.add(id(group.ranks))
                best = max(best, len(group.ranks))
    return best or None


def record(
    chosen: Mapping[int, Sequence[RankTrace]],
    pages: Iterable[ProgressPage] = (),
    world: int | None = None,
) -> Recorded:
    """Normalise the chosen traces. Linear in entries, plus the sizes of the groups."""
    out = Recorded(world_size=world)
    chosen = dict(sorted(chosen.items()))
    members = _members(chosen, pages, world)
    ids = _local_ids(chosen)
    usual = usual_backend(chosen)
    for rank, traces in chosen.items():
        for trace in traces:
            _read(out, rank, trace, members, usual)
    for key, info in out.groups.items():
        if not info.whole:
            seen = out.by_seq[key].ranks if key in out.by_seq else ()
            info.members = tuple(sorted({*seen, *info.members}))
    for rank, traces in chosen.items():
        for trace in traces:
            _add_status(out, rank, trace, ids.get(rank, {}), usual)
    for log in out.logs.values():
        log.pending.sort(key=lambda item: (item[1].record_id, item[1].index))
    return out


def _members(
    chosen: Mapping[int, Sequence[RankTrace]], pages: Iterable[ProgressPage], world: int | None
) -> dict[str, list[tuple[str, frozenset[int], tuple[int, ...]]]]:
    """Group name -> variants (description, members as a set, members in order)."""
    variants: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    seen: set[tuple[str, int]] = set()

    def take(group: Group, trusted: bool) -> None:
        if not group.ranks or (group.name, id(group.ranks)) in seen:
            return
        seen.add((group.name, id(group.ranks)))
        is_default = group.name in DEFAULT_GROUPS or group.desc in DEFAULT_GROUPS
        if not trusted and is_default and world and len(group.ranks) != world:
            return  # Gloo's nameless entry holds the ranks of whichever group came last
        variants[group.name].setdefault(group.ranks, group.desc)

    for page in pages:
        for group in page.groups:
            take(group, True)
    for traces in chosen.values():
        for trace in traces:
            for group in trace.groups:
                take(group, trace.backend not in GLOO_LIKE)
    out: dict[str, list[tuple[str, frozenset[int], tuple[int, ...]]]] = {}
    for name, found in variants.items():
        sets = [(desc, frozenset(ranks), ranks) for ranks, desc in found.items()]
        sets.sort(key=lambda v: (-len(v[1]), v[2]))
        kept: list[tuple[str, frozenset[int], tuple[int, ...]]] = []
        for one in sets:
            if not any(one[1] <= other[1] for other in kept):
                kept.append(one)
        out[name] = kept
    return out


def _key(
    name: str,
    backend: str,
    rank: int,
    members: Mapping[str, list[tuple[str, frozenset[int], tuple[int, ...]]]],
) -> tuple[str, tuple[int, ...]]:
    found = members.get(name, [])
    for _, ranks, order in found:
        if rank in ranks:
            suffix = f"@{min(ranks)}" if len(found) > 1 else ""
            return f"{backend}:{name}{suffix}", order
    return f"{backend}:{name}", ()


def _group(out: Recorded, key: str, name: str, desc: str, order: tuple[int, ...]) -> GroupInfo:
    info = out.groups.get(key)
    if info is None:
        whole = bool(order)
        if not whole and name in DEFAULT_GROUPS and out.world_size:
            order, whole = tuple(range(out.world_size)), True
        info = out.groups[key] = GroupInfo(key, name, desc, order, whole)
    elif desc and not info.desc:
        info.desc = desc
    return info


def _read(
    out: Recorded,
    rank: int,
    trace: RankTrace,
    members: Mapping[str, list[tuple[str, frozenset[int], tuple[int, ...]]]],
    usual: str,
) -> None:
    log = out.logs.get(rank)
    if log is None:
        log = out.logs[rank] = RankLog(rank, trace)
    descs = {g.name: g.desc for g in trace.groups}
    keys: dict[tuple[str, str], tuple[str, GroupInfo, Marks]] = {}
    finished = how_many(trace.ops, lambda op: op.finished)
    only_active = bool(trace.ops) and trace.wrapped and not finished
    complete = bool(trace.ops) and not trace.wrapped and not trace.truncated

    def slot(name: str, backend: str) -> tuple[str, GroupInfo, Marks]:
        found = keys.get((name, backend))
        if found is None:
            key, order = _key(name, backend, rank, members)
            info = _group(out, key, name, descs.get(name, ""), order)
            marks = log.marks.setdefault(key, Marks())
            marks.firm = not only_active
            found = keys[(name, backend)] = (key, info, marks)
        return found

    collectives: dict[str, list[tuple[int, int, bool, bool]]] = defaultdict(list)
    kinds = trace.ops.kinds if isinstance(trace.ops, OpColumns) else trace.ops
    slots = [slot(op.group, op.backend or trace.backend) for op in kinds]
    for at, (kind, seq) in enumerate(_kinds_and_seqs(trace.ops)):
        op = kinds[kind]
        key, info, _ = slots[kind]
        if op.is_p2p:
            info.p2p = True
        else:
            collectives[key].append((seq, at, op.finished, bool(op.started)))
        if not op.finished:
            log.pending.append((key, trace.ops[at]))
    for key, found in collectives.items():
        places = {seq: at for seq, at, _, _ in found}
        out.by_seq.setdefault(key, Lanes()).add(rank, trace.ops, places)
        marks = log.marks[key]
        marks.entered = max(marks.entered, *places)
        marks.started = max([marks.started, *(seq for seq, _, _, on in found if on)])
        open_ones = [seq for seq, _, done, _ in found if not done]
        if open_ones:
            marks.finished = min(open_ones) - 1
        else:
            marks.finished = max([marks.finished, *(seq for seq, _, done, _ in found if done)])
    if complete or trace.backend not in GLOO_LIKE or trace.groups:
        backend = trace.backend or usual
        for group in trace.groups:
            if group.name and group.ranks:
                slot(group.name, backend)[2].firm |= complete


def _kinds_and_seqs(ops: Sequence[Op]) -> Iterable[tuple[int, int]]:
    """For each operation the number of its kind (its own, where there are none) and its seq."""
    if isinstance(ops, OpColumns):
        return zip(ops.kind, ops.seqs(), strict=True)
    return enumerate(op.seq for op in ops)


def usual_backend(chosen: Mapping[int, Sequence[RankTrace]]) -> str:
    """The backend that most recorders name: what a recorder without entries belongs to."""
    counts = Counter(t.backend for traces in chosen.values() for t in traces if t.backend)
    return counts.most_common(1)[0][0] if counts else "nccl"


def _local_ids(chosen: Mapping[int, Sequence[RankTrace]]) -> dict[int, dict[str, str]]:
    """Rank -> group name -> rank-local id, borrowed from peers with the same layout if need be."""
    by_desc: dict[str, Counter[str]] = defaultdict(Counter)
    for traces in chosen.values():
        for trace in traces:
            descs = {g.name: g.desc for g in trace.groups}
            for name, local in trace.group_ids:
                if descs.get(name) not in (None, "", "undefined"):
                    by_desc[descs[name]][local] += 1
    positional = _positions_hold(chosen)
    out: dict[int, dict[str, str]] = {}
    for rank, traces in chosen.items():
        mine: dict[str, str] = {}
        for trace in traces:
            if positional:
                mine.update(_by_position(trace))
            mine.update(dict(trace.group_ids))
            status = {key for key, _ in trace.status}
            for group in trace.groups:
                votes = by_desc.get(group.desc)
                if group.name not in mine and votes and len(votes) == 1:
                    local = next(iter(votes))
                    if local in status:
                        mine[group.name] = local
        out[rank] = mine
    return out


def _by_position(trace: RankTrace) -> dict[str, str]:
    names = [g.name for g in trace.groups]
    locals_ = [key for key, _ in trace.status]
    if len(names) != len(locals_) or not all(n.isdigit() for n in names + locals_):
        return {}
    return dict(zip(sorted(names, key=int), sorted(locals_, key=int), strict=True))


def _positions_hold(chosen: Mapping[int, Sequence[RankTrace]]) -> bool:
    """Whether groups and ids in creation order agree wherever entries allow a check."""
    checked = 0
    for traces in chosen.values():
        for trace in traces:
            guess = _by_position(trace)
            for name, local in trace.group_ids:
                if name in guess:
                    if guess[name] != local:
                        return False
                    checked += 1
    return checked > 0


def _add_status(
    out: Recorded, rank: int, trace: RankTrace, ids: Mapping[str, str], usual: str
) -> None:
    """Let NCCL's pg_status fill what the ring forgot; groups with p2p count differently."""
    backend = trace.backend or usual
    if backend in GLOO_LIKE:
        return
    log = out.logs[rank]
    status: dict[str, GroupStatus] = dict(trace.status)
    for group in trace.groups:
        local = ids.get(group.name)
        found = status.get(local) if local is not None else None
        if found is None:
            continue
        for key, marks in log.marks.items():
            info = out.groups[key]
            if info.name != group.name or info.p2p or not key.startswith(backend):
                continue
            marks.firm = True
            pending = any(k == key for k, _ in log.pending)
            marks.entered = max(marks.entered, found.enqueued)
            marks.started = max(marks.started, found.started)
            if not pending:
                marks.finished = max(marks.finished, found.completed)
