"""Names the roots: turns sinks of the wait-for graph into kinds and culprits of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fabwatch.signatures.analysis import model, p2p
from fabwatch.signatures.analysis.exits import Deaths
from fabwatch.signatures.analysis.graph import (
    SYNCHRONISING,
    Graph,
    Head,
    OpNode,
    Sink,
    Situation,
)
from fabwatch.signatures.analysis.mismatch import Split, settled
from fabwatch.signatures.analysis.model import Root
from fabwatch.signatures.analysis.stages import Stage
from fabwatch.signatures.asking import ranks_text
from fabwatch.watchdog.evidence.known import Known


@dataclass(slots=True)
class Scene:
    """What is known around the graph."""

    situation: Situation
    stages: Mapping[int, Stage]
    stage_cites: Mapping[int, str]
    labels: Mapping[str, str]
    deaths: Deaths
    stopped: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    splits: Mapping[tuple[str, int], Split] = field(default_factory=dict)
    split_cites: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    firm: Mapping[str, set[int]] = field(default_factory=dict)
    started: Mapping[tuple[str, int], dict[int, bool]] = field(default_factory=dict)
    rank_cites: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    frozen: Known = Known.UNKNOWN


def name_roots(graph: Graph, scene: Scene) -> list[Root]:
    """One root for each sink, those alike merged, most waited-for first."""
    waited_in = _waited_in(graph)
    roots: list[Root] = []
    for sink in graph.sinks:
        root = _of_sink(sink, scene, waited_in)
        if root is not None:
            roots.append(root)
    merged = _merge(roots)
    return sorted(merged, key=lambda r: (-len(r.others), r.ranks, r.kind))


def _waited_in(graph: Graph) -> dict[int, OpNode]:
    """Rank -> the first operation in which it is missed."""
    out: dict[int, OpNode] = {}
    for node in sorted(graph.nodes, key=lambda n: (-len(n.waiters), n.group, n.seq)):
        for rank in (*node.blockers, *node.absent):
            out.setdefault(rank, node)
    return out


def _of_sink(sink: Sink, scene: Scene, waited_in: Mapping[int, OpNode]) -> Root | None:
    if sink.op is not None:
        return _of_op(sink.op, sink, scene)
    if len(sink.ranks) > 1:
        return _of_cycle(sink, scene)
    if not sink.ranks:
        return None
    rank = sink.ranks[0]
    head = scene.situation.heads.get(rank)
    if head is not None and head.is_p2p and rank not in scene.situation.halted:
        return _in_flight(rank, head, sink, scene)
    return _of_rank(rank, sink, scene, waited_in.get(rank))


def _of_rank(rank: int, sink: Sink, scene: Scene, node: OpNode | None) -> Root:
    """A rank that holds others up and waits for nobody."""
    stage = scene.stages.get(rank)
    frame = str(stage.frame) if stage and stage.frame else ""
    primary = stage.primary if stage else ""
    cites = (*scene.rank_cites.get(rank, ()), *_waiter_cites(node, scene))
    label = scene.labels.get(node.group, node.group) if node else ""
    root = Root(
        (rank,),
        model.HOST_STALL,
        label,
        node.op if node else "",
        node.seq if node else -1,
        frame,
        cites,
        sink.others,
        primary,
    )
    causes = {d.rank: d for d in (*scene.deaths.left, *scene.deaths.first)}
    death = causes.get(rank)
    if rank in scene.stopped:
        return replace(root, kind=model.STOPPED, cites=(*scene.stopped[rank], *cites))
    if death is not None:
        kind = model.LEFT if death.kind == "left" else model.DEAD
        return replace(
            root,
            kind=kind,
            cites=(*death.cites, *cites),
            why=death.what,
            frame=death.frame or frame,
        )
    if rank in scene.situation.absent:
        return replace(root, kind=model.ABSENT, sure=False)
    if primary == "teardown":
        return replace(root, kind=model.LEFT)
    if primary == "device-sync" and node is not None:
        return replace(
            root,
            kind=model.GPU_STALLED,
            stage="device-sync",
            sure=rank in scene.firm.get(node.group, set()),
            why="waits for its own device with nothing of the group in flight",
        )
    firm = node is None or rank in scene.firm.get(node.group, set())
    stands = primary in ("collective", "p2p")
    why = "its stack stands in a collective that no recorder shows" if stands else ""
    return replace(root, sure=firm and not stands, why=why)


def _waiter_cites(node: OpNode | None, scene: Scene) -> tuple[str, ...]:
    if node is None:
        return ()
    heads = scene.situation.heads
    return tuple(h.cite for r in node.waiters[:2] if (h := heads.get(r)) and h.cite)


def _of_cycle(sink: Sink, scene: Scene) -> Root:
    heads = {r: h for r in sink.ranks if (h := scene.situation.heads.get(r)) is not None}
    cites = tuple(h.cite for h in list(heads.values())[:8] if h.cite)
    first = next(iter(heads.values()))
    what = "; ".join(
        f"rank {r}: {h.op} in {scene.labels.get(h.group, h.group) or 'p2p'} {h.frame}".strip()
        for r, h in sorted(heads.items())[:8]
    )
    if any(h.is_p2p for h in heads.values()):
        kind, blamed = p2p.blame(sink.ranks, scene.situation.heads)
        blamed_head = heads.get(blamed[0], first) if blamed else first
        others = tuple(sorted((set(sink.others) | set(sink.ranks)) - set(blamed)))
        return Root(
            blamed,
            kind,
            "",
            blamed_head.op,
            blamed_head.seq,
            blamed_head.frame,
            cites,
            others,
            "p2p",
            scene.frozen is Known.NO or not blamed_head.stack,
            why=what,
        )
    label = scene.labels.get(first.group, first.group)
    return Root(
        sink.ranks,
        model.DEADLOCK,
        label,
        first.op,
        first.seq,
        first.frame,
        cites,
        sink.others,
        "collective",
        why=what,
        first_use=any(h.seq in (0, 1) for h in heads.values()),
    )


def _in_flight(rank: int, head: Head, sink: Sink, scene: Scene) -> Root:
    pair = tuple(sorted({rank} if head.peer is None else {rank, head.peer}))
    return Root(
        (),
        model.IN_COLLECTIVE,
        scene.labels.get(head.group, head.group),
        head.op,
        head.seq,
        head.frame,
        (head.cite,),
        sink.others,
        "p2p",
        False,
        pair,
        "both sides have made the call"
        if head.peer is not None
        else "nothing names the other side",
    )


def _of_op(node: OpNode, sink: Sink, scene: Scene) -> Root | None:
    """An operation that nobody is missing from, or that can never finish."""
    key = (node.group, node.seq)
    head = scene.situation.heads.get(node.waiters[0]) if node.waiters else None
    frame = head.frame if head else ""
    cites = _waiter_cites(node, scene)
    label = scene.labels.get(node.group, node.group)
    found = scene.splits.get(key)
    waiters = tuple(sorted(node.waiters))
    if found is not None:
        return mismatch_root(found, scene, (*waiters, *sink.others))
    if node.finishers and node.op in SYNCHRONISING:
        return _lag(node, scene, frame, cites, sink)
    starts = scene.started.get(key, {})
    idle = tuple(sorted(r for r, on in starts.items() if not on))
    if idle and len(idle) < len(starts) and len(idle) * 2 < len(node.waiters):
        others = tuple(sorted((set(waiters) | set(sink.others)) - set(idle)))
        return Root(
            idle,
            model.GPU_STALLED,
            label,
            node.op,
            node.seq,
            frame,
            cites,
            others,
            "device",
            why="entered on the host, never started on the device",
        )
    if not node.finishers:
        return Root(
            (),
            model.IN_COLLECTIVE,
            label,
            node.op,
            node.seq,
            frame,
            cites,
            tuple(sorted({*waiters, *sink.others})),
            "collective",
            False,
            waiters,
        )
    return Root(
        (),
        model.IN_COLLECTIVE,
        label,
        node.op,
        node.seq,
        frame,
        cites,
        tuple(sorted({*waiters, *sink.others})),
        "collective",
        False,
        waiters,
        "some members are through; the operation lets them",
    )


def _lag(node: OpNode, scene: Scene, frame: str, cites: tuple[str, ...], sink: Sink) -> Root:
    """Some finished an operation that nobody can finish alone: blame the smaller side."""
    label = scene.labels.get(node.group, node.group)
    late, done = tuple(sorted(node.waiters)), tuple(sorted(node.finishers))
    others = tuple(sorted({*late, *done, *sink.others}))
    sides = {**dict.fromkeys(late, False), **dict.fromkeys(done, True)}
    clear = settled(sides, len(node.unseen))
    if (clear and len(late) < len(done)) or _lag_of(node, scene) >= 2:
        return Root(
            late,
            model.COMPLETION_LAG,
            label,
            node.op,
            node.seq,
            frame,
            cites,
            tuple(r for r in others if r not in late),
            "device",
            why=f"peers are {_lag_of(node, scene)} operations further",
        )
    if clear and len(done) < len(late):
        return Root(
            done,
            model.COMPLETION_LAG,
            label,
            node.op,
            node.seq,
            frame,
            cites,
            tuple(r for r in others if r not in done),
            "device",
            False,
            done,
            "the only ones to have finished it: what they had to send on is missing",
        )
    return Root(
        (),
        model.COMPLETION_LAG,
        label,
        node.op,
        node.seq,
        frame,
        cites,
        others,
        "device",
        False,
        others,
        unseen=tuple(node.unseen),
    )


def _lag_of(node: OpNode, scene: Scene) -> int:
    marks = scene.situation.finished.get(node.group, {})
    return max((marks.get(r, -1) for r in node.finishers), default=node.seq) - node.seq + 1


_KINDS = {
    "type": model.TYPE_MISMATCH,
    "size": model.SIZE_MISMATCH,
    "dtype": model.DTYPE_MISMATCH,
    "root": model.ROOT_MISMATCH,
    "call-site": model.CALL_SITES,
}


def mismatch_root(found: Split, scene: Scene, waiting: Sequence[int]) -> Root:
    """The root of a disagreement: the minority, or everybody in a tie."""
    key = (found.group, found.seq)
    why = "; ".join(f"{value}: ranks {_short(ranks)}" for value, ranks in found.values[:4])
    if found.tie:
        why += "; a tie blames both sides"
    elif found.unseen:
        why += f"; how {ranks_text(found.unseen)} called is not known, and may turn the majority"
    heads = scene.situation.heads
    frame = next((heads[r].frame for r in found.odd if r in heads and heads[r].frame), "")
    if not frame:
        frame = next(
            (str(s.frame) for r in found.odd if (s := scene.stages.get(r)) and s.frame), ""
        )
    return Root(
        found.ranks,
        _KINDS[found.aspect],
        scene.labels.get(found.group, found.group),
        found.op,
        found.seq,
        frame,
        scene.split_cites.get(key, ()),
        tuple(sorted(set(waiting) - set(found.ranks))),
        "collective",
        sure=not found.unseen,
        suspects=found.odd if found.unseen else (),
        why=why,
        unseen=found.unseen,
    )


def _short(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return text + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _merge(roots: Sequence[Root]) -> list[Root]:
    """Put together ranks that hold up the same operation in the same way."""
    alike: dict[tuple[object, ...], list[Root]] = defaultdict(list)
    for root in roots:
        key: tuple[object, ...] = (root.kind, root.group, root.op, root.seq, root.stage, root.sure)
        if (
            root.kind
            not in (
                model.HOST_STALL,
                model.LEFT,
                model.ABSENT,
                model.STOPPED,
                model.DEAD,
                model.COMPLETION_LAG,
            )
            or not root.ranks
        ):
            key = (id(root),)
        alike[key].append(root)
    out = []
    for same in alike.values():
        ranks = tuple(sorted({r for root in same for r in root.ranks}))
        others = tuple(sorted({r for root in same for r in root.others} - set(ranks)))
        cites = tuple(dict.fromkeys(c for root in same for c in root.cites))
        out.append(replace(same[0], ranks=ranks, others=others, cites=cites))
    return out
