"""What must hold for any job: names of ranks and files do not matter, gaps invent no culprit."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabwatch.signatures.analysis import analyse

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"]


def schedule(rng: random.Random, size: int) -> list[tuple[str, str]]:
    """A random program of collectives that all ranks run: (op, group)."""
    return [(rng.choice(OPS), rng.choice(["0", "0", "1", "2"])) for _ in range(rng.randint(3, 25))]


def groups(size: int) -> dict[str, tuple[int, ...]]:
    return {"1": tuple(range(0, size, 2)), "2": tuple(range(size // 2, size))}


def build(world, seed, size, fault=None, culprit=0, relabel=None, backend="nccl"):
    """The state of a job in which ``culprit`` does ``fault`` at the last world operation."""
    rng = random.Random(seed)
    program = [*schedule(rng, size), ("all_reduce", "0")]
    names = relabel or list(range(size))
    w = world(size=size, backend=backend)
    w.groups = {g: tuple(sorted(names[r] for r in m)) for g, m in groups(size).items()}
    for rank in range(size):
        calls = [
            {"op": op, "group": g, "finished": True, "sizes_in": ((8,),)}
            for op, g in program
            if g == "0" or rank in groups(size)[g]
        ]
        if fault:
            calls[-1] = {**calls[-1], "finished": False}
            if rank == culprit:
                if fault == "missing":
                    calls.pop()
                elif fault == "type":
                    calls[-1]["op"] = "broadcast"
                elif fault == "size":
                    calls[-1]["sizes_in"] = ((9,),)
        w.trace(names[rank], calls)
    return w


def blamed(analysis):
    return {r for root in analysis.hang.roots for r in root.ranks}


def shapes(analysis):
    return sorted((r.kind, r.ranks, r.sure) for r in analysis.hang.roots)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@quick
@given(seed=st.integers(0, 10**6), size=st.integers(2, 9))
def test_a_healthy_schedule_has_no_root(world, backend, seed, size):
    a = analyse(build(world, seed, size, backend=backend).read())
    assert a.hang.roots == () and a.hang.waiting == ()
    bad = {f.name for f in a.facts if f.name.startswith(("collective.", "process.", "wait."))}
    assert bad == set()


@quick
@given(seed=st.integers(0, 10**6), size=st.integers(3, 9), data=st.data())
def test_every_rank_can_be_the_culprit_and_nobody_else_is_blamed(world, seed, size, data):
    culprit = data.draw(st.integers(0, size - 1))
    fault = data.draw(st.sampled_from(["missing", "type", "size"]))
    a = analyse(build(world, seed, size, fault, culprit).read())
    assert blamed(a) == {culprit}


@quick
@given(seed=st.integers(0, 10**6), size=st.integers(3, 8), data=st.data())
def test_the_order_of_files_does_not_matter(world, seed, size, data):
    fault = data.draw(st.sampled_from(["missing", "type", "size"]))
    culprit = data.draw(st.integers(0, size - 1))
    w = build(world, seed, size, fault, culprit)
    before = shapes(analyse(w.read()))
    keys = data.draw(st.permutations(list(w.traces)))
    w.traces = {k: w.traces[k] for k in keys}
    assert shapes(analyse(w.read())) == before


@quick
@given(seed=st.integers(0, 10**6), size=st.integers(3, 8), data=st.data())
def test_blame_follows_a_relabelling_of_the_ranks(world, seed, size, data):
    fault = data.draw(st.sampled_from(["missing", "type", "size"]))
    culprit = data.draw(st.integers(0, size - 1))
    names = data.draw(st.permutations(list(range(size))))
    a = analyse(build(world, seed, size, fault, culprit, list(names)).read())
    assert blamed(a) == {names[culprit]}


@quick
@given(seed=st.integers(0, 10**6), size=st.integers(4, 9), data=st.data())
def test_taking_evidence_away_never_convicts_somebody_else(world, seed, size, data):
    fault = data.draw(st.sampled_from(["missing", "type", "size"]))
    culprit = data.draw(st.integers(0, size - 1))
    w = build(world, seed, size, fault, culprit)
    lost = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=size - 1))
    for rank in lost:
        del w.traces[(rank, 1)]
    sure = {r for root in analyse(w.read()).hang.roots if root.sure for r in root.ranks}
    if fault == "missing" or len(set(range(size)) - lost - {culprit}) > 1:
        assert sure <= {culprit}
    else:  # two records left and they disagree: both sides, which says as much
        assert sure <= {culprit} | (set(range(size)) - lost)


@quick
@given(seed=st.integers(0, 10**6), size=st.integers(4, 9), data=st.data())
def test_a_healthy_job_with_missing_files_has_no_root(world, seed, size, data):
    w = build(world, seed, size)
    for rank in data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1)):
        del w.traces[(rank, 1)]
    assert analyse(w.read()).hang.roots == ()
