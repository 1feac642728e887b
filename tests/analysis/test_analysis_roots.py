"""Who is the root of a hang on recorders and stacks, whichever rank is the culprit."""

from __future__ import annotations

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.diagnose import diagnose

CULPRITS = pytest.mark.parametrize("culprit", [0, 2])


def only(analysis):
    assert len(analysis.hang.roots) == 1, analysis.hang.roots
    return analysis.hang.roots[0]


def others(culprit, size=4):
    return tuple(r for r in range(size) if r != culprit)


def names(analysis):
    return {f.name for f in analysis.facts}


@CULPRITS
def test_a_rank_that_never_entered_is_the_root_and_its_stack_says_why(world, culprit):
    w = world()
    w.waiting(*others(culprit))
    w.behind(culprit)
    w.in_loader(culprit)
    w.stall(still=others(culprit), waited_s=9.0)
    a = analyse(w.read())
    root = only(a)
    assert (root.kind, root.ranks, root.stage) == ("host-stall", (culprit,), "dataloader")
    assert root.others == others(culprit) == a.hang.waiting
    assert (root.group, root.op, root.seq, root.sure) == ("default_pg", "all_reduce", 4, True)
    assert root.frame == "/job/faults.py:61 fetch"
    lag = a.facts.of("collective.lagging")
    assert [(f.where.ranks, f.get("lag")) for f in lag] == [((culprit,), 1)]
    assert all(f.cites for f in a.facts), [f for f in a.facts if not f.cites]
    assert a.group_timeout_s == 1800


def test_nobody_waits_when_every_call_is_finished(world):
    w = world()
    for rank in range(4):
        w.behind(rank)
        w.stack(rank, ("crunch", "/job/train.py", 50), active=True)
    a = analyse(w.read())
    assert a.hang.roots == () and a.hang.waiting == ()
    assert not names(a) & {"collective.lagging", "wait.root", "collective.pending"}


@CULPRITS
@pytest.mark.parametrize(
    "frames, stage",
    [
        ([("sleep", "/job/x.py", 3), ("evaluate", "/job/train.py", 9)], "evaluation"),
        ([("save_checkpoint", "/job/train.py", 9)], "checkpoint"),
        ([("nap", "/job/train.py", 9)], "user-code"),
    ],
)
def test_the_stage_of_the_root_is_that_of_its_stack(world, culprit, frames, stage):
    w = world()
    w.waiting(*others(culprit))
    w.behind(culprit)
    w.stack(culprit, *frames)
    w.stall(still=others(culprit), waited_s=30.0, limit_s=60.0)
    a = analyse(w.read())
    assert (only(a).ranks, only(a).stage) == ((culprit,), stage)
    assert "wait.exceeded" not in names(a)


@CULPRITS
def test_a_stopped_rank_without_a_dump_is_the_root(world, culprit):
    w = world()
    w.waiting(*others(culprit))
    w.process(culprit, "T")
    root = only(analyse(w.read()))
    assert (root.kind, root.ranks, root.sure) == ("process-stopped", (culprit,), True)


def test_a_rank_stopped_inside_the_collective_is_still_the_root(world):
    w = world()
    w.waiting(0, 1, 2, 3)
    w.process(1, "S", frozen=True)
    root = only(analyse(w.read()))
    assert (root.kind, root.ranks, root.others) == ("process-stopped", (1,), (0, 2, 3))


def test_an_absent_rank_without_other_evidence_is_named_with_reserve(world):
    w = world()
    w.waiting(0, 1, 3)
    a = analyse(w.read())
    root = only(a)
    assert (root.kind, root.ranks, root.sure) == ("absent", (2,), False)
    assert any("dump of rank 2" in ask.what for ask in a.asks)


def test_several_absent_ranks_are_not_blamed_but_asked_for(world):
    w = world()
    w.waiting(0, 1)
    a = analyse(w.read())
    root = only(a)
    assert (root.ranks, root.suspects) == ((), (2, 3))
    assert any("ranks 2-3" in ask.what for ask in a.asks)


def test_an_absent_rank_acquits_itself_when_somebody_else_never_entered(world):
    w = world()
    w.waiting(0, 3)
    w.behind(1)
    w.in_loader(1)
    assert only(analyse(w.read())).ranks == (1,)


@CULPRITS
@pytest.mark.parametrize(
    "odd, kind, fact",
    [
        ({"op": "broadcast"}, "type-mismatch", "collective.type-mismatched"),
        ({"op": "barrier"}, "type-mismatch", "collective.type-mismatched"),
        ({"sizes_in": ((32,),)}, "size-mismatch", "collective.size-mismatched"),
        ({"dtypes_in": ("Double",)}, "dtype-mismatch", "collective.dtype-mismatched"),
    ],
)
def test_the_minority_of_a_mismatch_is_the_root(world, culprit, odd, kind, fact):
    w = world()
    w.waiting(*others(culprit))
    call = {"op": "all_reduce", "finished": False, **odd}
    w.trace(culprit, [*[("all_reduce", True)] * 3, call])
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == (kind, (culprit,))
    assert [f.where.ranks for f in a.facts.of(fact)] == [(culprit,)]


def test_equal_calls_are_no_mismatch_whatever_their_shape(world):
    w = world()
    w.waiting(0, 1, 2)
    w.trace(
        3,
        [
            *[("all_reduce", True)] * 3,
            {"op": "all_reduce", "finished": False, "sizes_in": ((2, 4),)},
        ],
    )
    a = analyse(w.read())
    assert only(a).kind == "in-collective"
    assert "collective.size-mismatched" not in names(a)


def test_a_tie_blames_both_sides_and_says_so(world):
    w = world()
    w.waiting(0, 1)
    w.waiting(2, 3, op="broadcast")
    a = analyse(w.read())
    assert only(a).ranks == (0, 1, 2, 3)
    assert "tie" in only(a).why


def test_with_two_ranks_a_mismatch_blames_both(world):
    w = world(size=2)
    w.waiting(0)
    w.waiting(1, op="broadcast")
    assert only(analyse(w.read())).ranks == (0, 1)


@pytest.mark.parametrize("op", ["all_to_all", "all_to_all_base"])
def test_all_to_all_sizes_may_differ(world, op):
    w = world()
    for rank in range(4):
        w.trace(rank, [{"op": op, "finished": False, "sizes_in": ((8 + rank,),)}])
    a = analyse(w.read())
    assert only(a).kind == "in-collective"


def test_uneven_parts_of_an_all_gather_that_add_up_are_legal(world):
    w = world()
    for rank, part in enumerate([8, 8, 8, 3]):
        w.trace(
            rank,
            [
                {
                    "op": "all_gather",
                    "finished": False,
                    "sizes_in": ((part,),),
                    "sizes_out": ((27,),),
                }
            ],
        )
    a = analyse(w.read())
    assert only(a).kind == "in-collective"
    assert "collective.size-mismatched" not in names(a)


@CULPRITS
def test_the_survivors_votes_tell_when_the_odd_sized_rank_is_gone(world, culprit):
    w = world()
    w.waiting(*others(culprit))
    w.event("gloo.size", "op.preamble.length <= op.nbytes. 16384 vs 4096", line=5)
    w.exit(culprit, signal=6, order=1)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("size-mismatch", (culprit,))


@pytest.mark.parametrize(
    ("got", "want", "outcome"), [(1188, 4, "diagnosed"), (8192, 4096, "cannot-tell")]
)
def test_a_refused_length_is_another_size_unless_an_element_type_would_explain_it(
    world, got, want, outcome
):
    w = world()
    w.waiting(0, 2, 3)
    w.event("gloo.size", f"op.preamble.length <= op.nbytes. {got} vs {want}", line=5)
    w.exit(1, signal=6, order=1)
    found = diagnose(w.read())
    assert (found.outcome, found.culprits.ranks) == (outcome, (1,))
    assert found.signatures[0].id == "collective-size-mismatch"


def test_an_innocent_that_aborts_on_anothers_size_is_not_blamed(world):
    w = world()
    w.waiting(0, 1, 3)
    w.trace(
        2,
        [
            *[("all_reduce", True)] * 3,
            {"op": "all_reduce", "finished": False, "sizes_in": ((32,),)},
        ],
    )
    w.event("gloo.size", "op.preamble.length <= op.nbytes. 128 vs 32", rank=3)
    w.exit(3, signal=6, order=1)
    assert only(analyse(w.read())).ranks == (2,)


@pytest.mark.parametrize("pair", [(0, 1), (1, 2), (0, 3)])
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_crossed_groups_blame_the_cycle_and_nobody_else(world, pair, backend):
    w = world(backend=backend)
    w.groups = {"1": pair, "2": pair}
    done = [("all_reduce", True)]
    for rank in range(4):
        if rank not in pair:
            w.trace(rank, [*done, ("all_reduce", False)])
            continue
        first = "1" if rank == pair[0] else "2"
        w.trace(
            rank,
            [
                *done,
                {"op": "all_reduce", "group": "1", "finished": True},
                {"op": "all_reduce", "group": "2", "finished": True},
                {"op": "all_reduce", "group": first, "finished": False},
            ],
        )
        w.page(rank)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("deadlock", pair)
    assert only(a).others == tuple(r for r in range(4) if r not in pair)
    assert "collective.lagging" not in names(a)


def test_the_same_order_of_groups_is_no_deadlock(world):
    w = world()
    w.groups = {"1": (0, 1), "2": (0, 1)}
    for rank in (0, 1):
        w.trace(
            rank,
            [
                {"op": "all_reduce", "group": "1", "finished": True},
                {"op": "all_reduce", "group": "2", "finished": True},
            ],
        )
        w.page(rank)
    assert analyse(w.read()).hang.roots == ()


@CULPRITS
def test_a_receive_that_nobody_sends_blames_the_receiver(world, culprit):
    w = world()
    peer = (culprit + 1) % 4
    w.waiting(*others(culprit))
    w.behind(culprit)
    w.in_p2p(culprit, "recv", peer)
    w.stall(still=(0, 1, 2, 3), waited_s=9.0)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("p2p-unmatched", (culprit,))
    assert [f.where.ranks for f in a.facts.of("p2p.unmatched")] == [(culprit,)]


def test_one_look_at_stacks_does_not_convict_a_receiver(world):
    w = world()
    for rank in range(4):
        w.behind(rank)
    w.in_p2p(1, "recv", 0)
    w.stack(0, ("forward", "/job/pipe.py", 5), active=True)
    a = analyse(w.read())
    assert a.hang.roots == ()
    assert any("second snapshot" in ask.what for ask in a.asks)


@pytest.mark.parametrize("pair", [(0, 1), (2, 3)])
def test_two_ranks_that_receive_from_each_other_are_a_cycle(world, pair):
    w = world()
    rest = [r for r in range(4) if r not in pair]
    w.waiting(*rest)
    for rank, peer in (pair, pair[::-1]):
        w.behind(rank)
        w.in_p2p(rank, "recv", peer)
    w.stall(still=(0, 1, 2, 3), waited_s=9.0)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("p2p-cycle", pair)
    assert a.facts.of("p2p.deadlocked")[0].where.ranks == pair


def test_a_pipeline_that_moves_between_snapshots_has_no_root(world):
    w = world()
    for rank in range(4):
        if rank:
            w.in_p2p(rank, "recv", rank - 1)
        else:
            w.stack(rank, ("forward", "/job/pipe.py", 5), active=True)
        for snapshot in (1, 2):
            w.page(rank, snapshot=snapshot, mark=7 + 4 * snapshot)
    w.stall("request", still=(0, 1, 2, 3))
    a = analyse(w.read())
    assert a.hang.roots == ()
    assert "progress.advancing" in names(a)


def test_a_pipeline_that_stands_still_names_the_stage_that_holds_it(world):
    w = world()
    for rank in range(4):
        if rank:
            w.in_p2p(rank, "recv", rank - 1)
        else:
            w.in_loader(rank)
        for snapshot in (1, 2):
            w.page(rank, snapshot=snapshot, mark=7)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).others) == ("host-stall", (0,), (1, 2, 3))


def site(line):
    from fabwatch.watchdog.evidence.observations import Frame

    return (
        Frame("all_reduce", "/lib/torch/distributed/distributed_c10d.py", 3),
        Frame("step", "/job/train.py", line),
    )


@CULPRITS
def test_one_call_more_is_told_from_call_sites(world, culprit):
    w = world()
    loop = [{"op": "all_reduce", "finished": True, "frames": site(10)} for _ in range(6)]
    extra = {"op": "all_reduce", "finished": True, "frames": site(99)}
    for rank in range(4):
        calls = [*loop[:3], extra, *loop[:3]] if rank == culprit else loop
        calls = [*calls, {"op": "all_reduce", "finished": False, "frames": site(10)}]
        w.trace(rank, calls if rank == culprit else calls[:6])
        w.in_loader(rank) if rank != culprit else w.in_collective(rank)
    w.stall(still=(culprit,), waited_s=20.0)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).seq) == ("call-sites-differ", (culprit,), 4)
    assert a.facts.of("collective.call-sites-differ")[0].where.ranks == (culprit,)


def test_an_honest_if_rank_zero_is_no_shift(world):
    w = world()
    for rank in range(4):
        here = site(20 if rank == 0 else 25)
        calls = [
            {"op": "all_reduce", "finished": True, "frames": site(10)},
            {"op": "all_reduce", "finished": True, "frames": here},
            {"op": "all_reduce", "finished": True, "frames": site(10)},
            {"op": "all_reduce", "finished": False, "frames": site(10)},
        ]
        w.trace(rank, calls[:3] if rank == 3 else calls)
    w.in_loader(3)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("host-stall", (3,))
    assert "collective.call-sites-differ" not in names(a)


def test_one_waiter_while_all_others_have_left_is_uneven_and_undecided(world):
    w = world()
    w.waiting(0)
    for rank in (1, 2, 3):
        w.behind(rank)
        w.stack(
            rank,
            ("destroy_process_group", "torch/distributed/distributed_c10d.py", 2100),
            ("main", "/job/train.py", 130),
        )
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("uneven-participation", ())
    assert a.asks


@CULPRITS
def test_a_rank_in_teardown_has_left_the_loop(world, culprit):
    w = world()
    w.waiting(*others(culprit))
    w.behind(culprit)
    w.stack(culprit, ("destroy_process_group", "torch/distributed/distributed_c10d.py", 2100))
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("left-the-loop", (culprit,))
    assert a.facts.of("process.left")[0].where.ranks == (culprit,)


def test_stacks_alone_name_the_rank_that_is_elsewhere_once_it_stands(world):
    w = world()
    for rank in (0, 1, 3):
        w.in_collective(rank)
    w.in_loader(2)
    assert analyse(w.read()).hang.roots == ()
    w = world()
    for rank in (0, 1, 3):
        w.in_collective(rank)
    w.in_loader(2)
    w.stall(still=(0, 1, 3), waited_s=9.0)
    assert only(analyse(w.read())).ranks == (2,)


def test_a_dump_taken_earlier_than_its_peers_is_no_lag(world):
    w = world()
    for rank in (0, 1, 2):
        w.trace(rank, [*[("all_reduce", True)] * 9, ("all_reduce", False)])
    w.behind(3, steps=5)
    a = analyse(w.read())
    assert a.hang.roots == ()
    assert any("taken earlier" in str(doubt) for doubt in a.contradictions)


def test_a_wait_of_milliseconds_is_refused_and_one_of_seconds_is_not(world):
    for age, expected in ((0.05, ()), (9.0, (3,))):
        w = world()
        now = 1_790_000_000.0
        for rank in (0, 1, 2):
            w.trace(
                rank,
                [
                    *[("all_reduce", True)] * 3,
                    {"op": "all_reduce", "finished": False, "created_ns": int((now - age) * 1e9)},
                ],
                taken=now,
            )
        w.behind(3)
        w.in_loader(3)
        found = [r for root in analyse(w.read()).hang.roots for r in root.ranks]
        assert tuple(found) == expected


def test_counters_that_move_between_snapshots_acquit(world):
    w = world()
    for snapshot, steps in ((1, 3), (2, 8)):
        for rank in (0, 1, 2):
            w.trace(
                rank, [*[("all_reduce", True)] * steps, ("all_reduce", False)], snapshot=snapshot
            )
        w.trace(3, [("all_reduce", True)] * steps, snapshot=snapshot)
    w.in_loader(3)
    a = analyse(w.read())
    assert a.hang.roots == ()
    assert a.facts.of("progress.advancing")[0].where.ranks == (0, 1, 2, 3)
    w = world()
    for snapshot in (1, 2):
        for rank in (0, 1, 2):
            w.trace(rank, [*[("all_reduce", True)] * 3, ("all_reduce", False)], snapshot=snapshot)
        w.trace(3, [("all_reduce", True)] * 3, snapshot=snapshot)
    w.in_loader(3)
    a = analyse(w.read())
    assert only(a).ranks == (3,)
    assert "progress.frozen" in names(a)


def test_without_a_world_size_the_groups_members_are_those_seen(world):
    w = world(known_size=False)
    w.waiting(0, 1, 3)
    w.behind(2)
    a = analyse(w.read())
    assert only(a).ranks == (2,)
    assert a.world_size is None
