"""The same graph on logs alone, and on NCCL RAS alone."""

from __future__ import annotations

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.observations import RasComm, RasRank, RasReport, Source

CULPRITS = pytest.mark.parametrize("culprit", [0, 2])
PRINT = "SequenceNumber=4, OpType={op}, TensorShape=[{shape}], TensorDtypes={dtype}, Tensor"


def only(analysis):
    assert len(analysis.hang.roots) == 1, analysis.hang.roots
    return analysis.hang.roots[0]


def timed_out(w, rank, seq, enqueued, completed):
    w.event(
        "nccl.watchdog-timeout",
        "Watchdog caught collective operation timeout",
        rank,
        line=10 * rank + 1,
        seq=seq,
        op="ALLREDUCE",
        numel_in=1024,
        timeout_ms=600000,
    )
    w.event(
        "nccl.status",
        "failure detected by watchdog",
        rank,
        line=10 * rank + 2,
        at=seq,
        enq=enqueued,
        comp=completed,
        pg_guid="0",
    )


@CULPRITS
def test_watchdog_lines_alone_name_the_rank_that_never_enqueued(world, culprit):
    w = world(backend="nccl")
    for rank in range(4):
        if rank == culprit:
            w.event("nccl.dump", "Received a dump signal", rank, line=99, enq=20, comp=20)
        else:
            timed_out(w, rank, 21, 21, 20)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).op) == ("host-stall", (culprit,), "all_reduce")
    assert only(a).seq == 21
    assert a.facts.of("timeout.reported")[0].get("timeout_ms") == 600000
    assert a.group_timeout_s == 600


def test_watchdog_lines_of_all_ranks_at_one_operation_blame_nobody(world):
    w = world(backend="nccl")
    for rank in range(4):
        timed_out(w, rank, 21, 21, 20)
    assert (only(analyse(w.read())).kind, only(analyse(w.read())).ranks) == ("in-collective", ())


def test_a_silent_rank_is_named_with_reserve(world):
    w = world(backend="nccl")
    for rank in (0, 1, 3):
        timed_out(w, rank, 21, 21, 20)
    root = only(analyse(w.read()))
    assert (root.kind, root.ranks, root.sure) == ("absent", (2,), False)


def test_a_gap_means_a_rank_only_where_most_ranks_report(world):
    few = world(backend="nccl")
    for rank in (0, 2, 7):
        timed_out(few, rank, 21, 21, 20)
    assert only(analyse(few.read())).ranks == ()


@CULPRITS
def test_fingerprints_are_voted_on(world, culprit):
    w = world()
    usual = PRINT.format(op="ALLREDUCE", shape="4", dtype="Float")
    odd = PRINT.format(op="BROADCAST", shape="4", dtype="Float")
    for rank in range(4):
        if rank != culprit:
            w.event(
                "detail.mismatch", "Detected mismatch", rank, a=rank, fa=usual, b=culprit, fb=odd
            )
    a = analyse(w.read())
    assert a.facts.of("collective.type-mismatched")[0].where.ranks == (culprit,)


def test_monitored_barrier_names_who_did_not_come(world):
    w = world()
    w.event(
        "monitored-barrier",
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4000 ms",
        0,
        ranks="1, 2",
        ms=4000,
    )
    a = analyse(w.read())
    assert only(a).ranks == (1, 2)
    assert a.facts.of("monitored-barrier.failed")[0].where.ranks == (1, 2)


def ras(w, counts, snapshot=1, missing=()):
    ranks = tuple(
        RasRank(r, pid=1000 + r, counts=(("AllReduce", n),), missing=r in missing)
        for r, n in enumerate(counts)
    )
    w.add(
        "ras",
        RasReport(
            Source(f"ras{snapshot}.json", "ras", snapshot=snapshot),
            "2.28.9",
            (RasComm("0xab", len(counts), ranks),),
        ),
    )


@CULPRITS
def test_ras_alone_names_who_launched_less_when_two_polls_agree(world, culprit):
    counts = [20 if r == culprit else 21 for r in range(4)]
    w = world(backend="nccl")
    ras(w, counts)
    ras(w, counts, 2)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("host-stall", (culprit,))
    assert a.facts.of("collective.count-mismatched")[0].where.ranks == (culprit,)


def test_ras_counts_that_move_are_no_mismatch(world):
    w = world(backend="nccl")
    ras(w, [21, 20, 21, 21])
    ras(w, [41, 41, 40, 41], 2)
    a = analyse(w.read())
    assert not a.facts.of("collective.count-mismatched")
    assert a.hang.roots == ()


def test_text_and_json_of_one_moment_are_one_poll(world):
    w = world(backend="nccl")
    ras(w, [21, 20, 21, 21])
    ras(w, [21, 20, 21, 21])
    a = analyse(w.read())
    assert not a.facts.of("collective.count-mismatched")
    assert a.hang.roots == ()


def test_equal_ras_counts_say_nothing(world):
    w = world(backend="nccl")
    ras(w, [21] * 4)
    assert analyse(w.read()).hang.roots == ()


def test_ras_says_who_is_missing(world):
    w = world(backend="nccl")
    w.known_size = True
    ras(w, [21] * 4, missing=(3,))
    assert analyse(w.read()).facts.of("process.absent")[0].where.ranks == (3,)


def test_torchs_own_desync_report_is_read_the_right_way_round(world):
    w = world(backend="nccl")
    w.event("nccl.desync-rank", "", line=1, ranks="0, 1, 3", joined=39)
    w.event("nccl.desync-rank", "", line=2, ranks="2", done=38, next=39)
    root = only(analyse(w.read()))
    assert (root.kind, root.ranks, root.seq) == ("host-stall", (2,), 39)
