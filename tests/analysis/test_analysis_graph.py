"""The graph itself: components, shared edges, and a cost that grows with the job and no faster."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.signatures.analysis.graph import Head, Situation, build, components_of


def reach(edges, start):
    seen, todo = set(), [start]
    while todo:
        for target in edges.get(todo.pop(), ()):
            if target not in seen:
                seen.add(target)
                todo.append(target)
    return seen


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=4), max_size=12))
def test_two_nodes_share_a_component_exactly_when_each_reaches_the_other(edges):
    components, of = components_of(edges)
    nodes = set(edges) | {t for ts in edges.values() for t in ts}
    assert {n for c in components for n in c} == nodes
    for a in nodes:
        for b in nodes - {a}:
            together = b in reach(edges, a) and a in reach(edges, b)
            assert (of[a] == of[b]) is together


def big(size, width=8):
    """A job of size ranks in tensor groups, data groups and the world; one rank never came."""
    s = Situation()
    late = size // 3
    s.members["world"] = tuple(range(size))
    s.entered["world"] = {r: 9 for r in range(size)}
    for start in range(0, size, width):
        name = f"tp{start // width}"
        s.members[name] = tuple(range(start, start + width))
        s.entered[name] = {r: 50 if r != late else 49 for r in s.members[name]}
    for r in range(size):
        group = f"tp{r // width}"
        if r == late:
            continue
        if late // width == r // width:
            s.heads[r] = Head(r, group, 50, "all_gather", 100)
        else:
            s.heads[r] = Head(r, "world", 10, "all_reduce", 200)
            s.entered["world"][r] = 10
    return s, late


def test_one_late_rank_among_many_is_the_only_sink():
    s, late = big(1024)
    graph = build(s)
    assert [(k.ranks, len(k.others)) for k in graph.sinks] == [((late,), 1023)]


def test_a_group_of_many_waiters_shares_one_set_of_edges():
    s, _ = big(4096)
    graph = build(s)
    ranks = [n for n in graph.edges if n >= 0]
    edges = sum(len(targets) for targets in graph.edges.values())
    assert edges <= len(ranks) + sum(len(n.blockers) for n in graph.nodes)
    assert len(graph.nodes) == 2


def count_steps(size):
    """Lines that Python runs for a job of ``size`` ranks: a cost without a clock."""
    import sys

    s, _ = big(size)
    steps = 0

    def trace(frame, event, arg):
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        build(s)
    finally:
        sys.settrace(before)
    return steps


def test_twice_the_ranks_cost_twice_the_steps_and_not_more():
    small, double = count_steps(2048), count_steps(4096)
    assert double < 2.3 * small


def test_a_ring_of_a_hundred_thousand_ranks_needs_no_recursion():
    size = 100_000
    components, _ = components_of({n: ((n + 1) % size,) for n in range(size)})
    assert [len(c) for c in components] == [size]
