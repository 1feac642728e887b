"""Builds the wait-for graph over ranks and finds its sinks, in time linear in what is pending.

A rank waits in its primary head, the first operation that it has not finished. All ranks whose
head is the same operation share one node, and that node points to whoever holds it up: members
that never entered, members whose own head lies elsewhere, members that are halted. A strongly
connected component that nothing leaves is a root.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SYNCHRONISING = frozenset(
    {
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_base",
        "all_gather_coalesced",
        "all_gather_into_tensor_coalesced",
        "reduce_scatter",
        "reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
        "all_to_all",
        "all_to_all_base",
        "barrier",
        "monitored_barrier",
    }
)
"""Operations that nobody can finish before everybody has entered."""

Node = int
"""Ranks are their own numbers; operation nodes are ``-1 - index``."""


@dataclass(frozen=True, slots=True)
class Head:
    """Where one rank waits. ``peer`` is a global rank for send and recv, else None.

    ``order`` sorts heads of one rank; ``stack`` when only a stack told.
    """

    rank: int
    group: str
    seq: int
    op: str
    order: int = 0
    peer: int | None = None
    sending: bool = False
    is_p2p: bool = False
    stack: bool = False
    frame: str = ""
    cite: str = ""


@dataclass(slots=True)
class Situation:
    """What the graph is built from. All maps are keyed by group, then by rank.

    ``entered`` and ``finished`` hold collective sequence numbers (-1 none). A member missing from
    ``entered`` never entered, unless it is in ``absent`` (nothing is known of it) or ``inside``
    (it left no recorder, but its stack stands in a collective).
    ``halted`` ranks can do nothing any more (stopped, frozen, dead, gone). ``broken``
    are operations (group, seq) that can never finish (mismatch).
    """

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    entered: dict[str, dict[int, int]] = field(default_factory=dict)
    finished: dict[str, dict[int, int]] = field(default_factory=dict)
    heads: dict[int, Head] = field(default_factory=dict)
    absent: frozenset[int] = frozenset()
    inside: frozenset[int] = frozenset()
    halted: frozenset[int] = frozenset()
    broken: frozenset[tuple[str, int]] = frozenset()


@dataclass(slots=True)
class OpNode:
    """One operation that is somebody's head, who waits in it and who holds it up.

    ``unseen`` members left nothing, but must have entered: others finished what needs everybody.
    """

    group: str
    seq: int
    op: str
    waiters: list[int] = field(default_factory=list)
    blockers: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)
    finishers: list[int] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Sink:
    """A root component: its ranks, and the operation node that it consists of, if it is one."""

    ranks: tuple[int, ...]
    op: OpNode | None
    others: tuple[int, ...] = ()


@dataclass(slots=True)
class Graph:
    """The built graph: operation nodes, edges, sinks."""

    nodes: list[OpNode] = field(default_factory=list)
    at: dict[tuple[str, int], int] = field(default_factory=dict)
    edges: dict[Node, Sequence[Node]] = field(default_factory=dict)
    sinks: list[Sink] = field(default_factory=list)

    def node_of(self, head: Head) -> OpNode | None:
        """The operation node of a collective head."""
        index = self.at.get((head.group, head.seq))
        return None if index is None or head.is_p2p else self.nodes[index]


def build(situation: Situation) -> Graph:
    """Make the graph and find its sinks. Linear in heads plus members of groups with heads."""
    graph = Graph()
    heads = situation.heads
    for rank, head in heads.items():
        if rank in situation.halted:
            continue
        if head.is_p2p:
            graph.edges[rank] = _p2p_edge(situation, head)
            continue
        key = (head.group, head.seq)
        index = graph.at.get(key)
        if index is None:
            index = graph.at[key] = len(graph.nodes)
            graph.nodes.append(OpNode(head.group, head.seq, head.op))
        graph.nodes[index].waiters.append(rank)
        graph.edges[rank] = (-1 - index,)
    by_group: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(graph.nodes):
        by_group[node.group].append(index)
    for group, indexes in by_group.items():
        _hold_up(situation, graph, group, indexes)
    for index, node in enumerate(graph.nodes):
        if (node.group, node.seq) in situation.broken:
            graph.edges[-1 - index] = ()
        else:
            graph.edges[-1 - index] = tuple(node.blockers) or tuple(node.absent)
    _find_sinks(graph)
    return graph


def _p2p_edge(situation: Situation, head: Head) -> tuple[Node, ...]:
    peer = head.peer
    if peer is None:
        return ()
    if peer in situation.halted:
        return (peer,)
    theirs = situation.heads.get(peer)
    if (
        theirs is not None
        and theirs.is_p2p
        and theirs.sending != head.sending
        and theirs.peer in (None, head.rank)
    ):
        return ()
    return (peer,)


def _hold_up(situation: Situation, graph: Graph, group: str, indexes: list[int]) -> None:
    """Find the blockers of all nodes of one group.

    Members are walked once for each distinct head of the group; ranks in lockstep share one head,
    so that is a small number unless the evidence is broken, and then it is bounded.
    """
    members = situation.members.get(group, ())
    entered = situation.entered.get(group, {})
    finished = situation.finished.get(group, {})
    heads = situation.heads
    ordered = sorted(indexes, key=lambda i: graph.nodes[i].seq)
    for index in ordered[16:]:  # so many different heads in one group: behind the first of them
        graph.nodes[index].blockers = list(graph.nodes[ordered[0]].waiters)
    for index in ordered[:16]:
        node = graph.nodes[index]
        seq = node.seq
        for rank in members:
            done = finished.get(rank, -1) >= seq and seq >= 0
            if done:
                node.finishers.append(rank)
                continue
            if rank in situation.halted:
                node.blockers.append(rank)
                continue
            mark = entered.get(rank)
            if mark is None:
                if rank in situation.absent:
                    node.absent.append(rank)
                elif rank not in situation.inside:
                    node.behind.append(rank)
                    node.blockers.append(rank)
                continue
            if mark < seq:
                node.behind.append(rank)
                node.blockers.append(rank)
                continue
            head = heads.get(rank)
            if head is not None and (head.is_p2p or (head.group, head.seq) != (group, seq)):
                node.blockers.append(rank)
        if node.finishers and node.op in SYNCHRONISING:
            node.absent, node.unseen = [], node.absent


def _find_sinks(graph: Graph) -> None:
    components, component_of = components_of(graph.edges)
    leaves = [True] * len(components)
    for node, targets in graph.edges.items():
        mine = component_of[node]
        if leaves[mine] and any(component_of[target] != mine for target in targets):
            leaves[mine] = False
    wanted = {i for i, leaf in enumerate(leaves) if leaf}
    waiting = _who_waits(graph, component_of, wanted)
    for index in sorted(wanted):
        nodes = components[index]
        ranks = tuple(sorted(n for n in nodes if n >= 0))
        ops = [graph.nodes[-1 - n] for n in nodes if n < 0]
        if not ranks and not ops:
            continue
        single = ops[0] if len(nodes) == 1 and ops else None
        others = waiting.get(index, ())
        graph.sinks.append(Sink(ranks, single, tuple(sorted(set(others) - set(ranks)))))


def _who_waits(
    graph: Graph, component_of: Mapping[Node, int], wanted: set[int]
) -> dict[int, list[int]]:
    """For each wanted component the ranks that can reach it; one backward walk for each root.

    Beyond 64 roots a walk for each would cost more than it tells; the rest count direct waiters.
    """
    backward: dict[Node, list[Node]] = defaultdict(list)
    for node, targets in graph.edges.items():
        for target in targets:
            backward[target].append(node)
    starts: dict[int, list[Node]] = defaultdict(list)
    for node, index in component_of.items():
        if index in wanted:
            starts[index].append(node)
    out: dict[int, list[int]] = {}
    for count, (index, nodes) in enumerate(starts.items()):
        seen = set(nodes)
        todo = list(nodes)
        while todo:
            for before in backward.get(todo.pop(), ()):
                if before not in seen:
                    seen.add(before)
                    if count < 64:
                        todo.append(before)
        out[index] = [n for n in seen if n >= 0]
    return out


def components_of(
    edges: Mapping[Node, Sequence[Node]],
) -> tuple[list[list[Node]], dict[Node, int]]:
    """Strongly connected components (Tarjan, without recursion) and each node's component."""
    order: dict[Node, int] = {}
    low: dict[Node, int] = {}
    component_of: dict[Node, int] = {}
    components: list[list[Node]] = []
    stack: list[Node] = []
    nothing: tuple[Node, ...] = ()
    for start in edges:
        if start in order:
            continue
        order[start] = low[start] = len(order)
        stack.append(start)
        walk = [(start, iter(edges.get(start, nothing)))]
        while walk:
            node, targets = walk[-1]
            deeper = False
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    walk.append((target, iter(edges.get(target, nothing))))
                    deeper = True
                    break
                if target not in component_of and order[target] < low[node]:
                    low[node] = order[target]
            if deeper:
                continue
            walk.pop()
            if walk and low[node] < low[walk[-1][0]]:
                low[walk[-1][0]] = low[node]
            if low[node] == order[node]:
                members = []
                while True:
                    top = stack.pop()
                    component_of[top] = len(components)
                    members.append(top)
                    if top == node:
                        break
                components.append(members)
    return components, component_of
