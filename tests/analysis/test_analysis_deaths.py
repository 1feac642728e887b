"""Who died first, and whom a death merely took along."""

from __future__ import annotations

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.observations import LogEvent, Source

CLOSED = "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"
CULPRITS = pytest.mark.parametrize("culprit", [0, 2])


def rest(culprit):
    return [r for r in range(4) if r != culprit]


def only(analysis):
    assert len(analysis.hang.roots) == 1, analysis.hang.roots
    return analysis.hang.roots[0]


@CULPRITS
def test_the_first_unexplained_exception_is_the_root_and_its_peers_are_victims(world, culprit):
    w = world()
    w.waiting(*rest(culprit))
    w.error(culprit, "ValueError", "bad sample in batch", when=100.0, line=44)
    w.exit(culprit, 1, order=1, when=100.1)
    for order, rank in enumerate(rest(culprit), 2):
        w.error(rank, "RuntimeError", CLOSED, when=100.05)
        w.exit(rank, 1, order=order, when=100.2)
    w.stall("exit")
    a = analyse(w.read())
    root = only(a)
    assert (root.kind, root.ranks, root.why) == ("process-dead", (culprit,), "ValueError")
    assert root.frame == "/job/train.py:44 step"
    assert a.facts.of("exception.raised")[0].where.ranks == (culprit,)
    assert {r for f in a.facts.of("exception.consequent") for r in f.where.ranks} == set(
        rest(culprit)
    )


@CULPRITS
def test_who_leaves_with_code_zero_before_the_connection_errors_began_it(world, culprit):
    w = world()
    w.exit(culprit, 0, order=1, when=100.0)
    for order, rank in enumerate(rest(culprit), 2):
        w.error(rank, "RuntimeError", CLOSED, when=100.1)
        w.exit(rank, 1, order=order, when=100.2)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("left-the-loop", (culprit,))
    assert a.facts.of("process.left")[0].where.ranks == (culprit,)


def test_all_leaving_with_code_zero_is_the_end_of_a_job(world):
    w = world()
    for rank in range(4):
        w.exit(rank, 0, order=rank + 1)
    a = analyse(w.read())
    assert a.hang.roots == () and not a.facts.of("process.left")


@CULPRITS
def test_leaving_while_others_wait(world, culprit):
    w = world()
    w.waiting(*rest(culprit))
    w.exit(culprit, 0, order=1)
    w.stall("exit")
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).others) == (
        "left-the-loop",
        (culprit,),
        tuple(rest(culprit)),
    )


@CULPRITS
def test_an_unexplained_sigkill_is_the_root(world, culprit):
    w = world()
    w.waiting(*rest(culprit))
    w.exit(culprit, signal=9, order=1, when=50.0)
    for order, rank in enumerate(rest(culprit), 2):
        w.exit(rank, signal=15, order=order, when=50.1, ours=True)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("process-dead", (culprit,))
    killed = a.facts.of("process.killed")
    assert [(f.where.ranks, f.get("signal"), f.get("first")) for f in killed] == [
        ((culprit,), 9, True)
    ]
    assert not a.facts.of("process.terminated")


def test_ranks_that_the_launcher_ends_are_nobodys_cause(world):
    w = world()
    for rank in range(4):
        w.exit(rank, signal=9 if rank == 1 else 15, order=rank + 1, ours=True)
    a = analyse(w.read())
    assert a.hang.roots == () and not a.facts.of("process.killed")


def test_a_code_of_128_plus_9_is_a_kill(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, 137, order=1)
    assert analyse(w.read()).facts.of("process.killed")[0].get("signal") == 9


def test_the_oom_killer_is_told_from_any_other_kill(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=9, order=1, oom_killed=True)
    a = analyse(w.read())
    assert a.facts.of("process.oom-killed")[0].where.ranks == (2,)
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=9, order=1)
    assert not analyse(w.read()).facts.of("process.oom-killed")


def test_a_kernel_kill_of_nobody_known_is_not_the_jobs_where_each_exit_was_looked_at(world):
    for looked, found in ((False, 0), (None, 1)):
        w = world()
        w.waiting(0, 1, 3)
        w.behind(2)
        w.stall(still=(0, 1, 3), detected=100.0, waited_s=20.0)
        w.exit(2, signal=15, order=1, when=110.0, oom_killed=looked)
        text = "Memory cgroup out of memory: Killed process 999 (python3) total-vm:1kB"
        fields = (("pid", "999"), ("scope", "cgroup"))
        source = Source("dmesg.txt", "kernel-log")
        w.add("events", LogEvent(source, "oom-kill", 1, text, fields=fields))
        assert len(analyse(w.read()).facts.of("process.oom-killed")) == found


def test_a_timed_out_victim_that_exits_first_is_not_blamed(world):
    w = world()
    w.waiting(0, 1, 3)
    w.behind(2)
    w.in_loader(2)
    w.error(0, "RuntimeError", "gloo/unbound_buffer.cc:78] Timed out waiting 25000ms for recv", 9.0)
    w.event("gloo.timeout", "gloo/unbound_buffer.cc:78] Timed out waiting 25000ms for recv", 0)
    w.exit(0, 1, order=1, when=9.1)
    w.exit(2, signal=15, order=2, when=9.2, ours=True)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("host-stall", (2,))


def test_a_watchdogs_abort_after_a_timeout_is_no_cause(world):
    w = world(backend="nccl")
    for rank in (0, 1, 3):
        w.trace(rank, [("all_reduce", True), ("all_reduce", False)])
    w.trace(2, [("all_reduce", True)])
    w.in_loader(2)
    w.event(
        "nccl.timeout",
        "Watchdog caught collective operation timeout",
        0,
        seq=2,
        op="ALLREDUCE",
        timeout_ms=600000,
    )
    w.exit(0, signal=6, order=1)
    w.exit(2, signal=6, order=2)
    assert (only(analyse(w.read())).kind, only(analyse(w.read())).ranks) == ("host-stall", (2,))


def test_an_abort_without_any_timeout_is_a_cause(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=6, order=1)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("process-dead", (2,))
    assert a.facts.of("process.aborted")


def test_the_same_bug_on_every_rank_blames_every_rank(world):
    w = world()
    for rank in range(4):
        w.error(rank, "KeyError", "'lr'", when=10 + rank / 100)
        w.exit(rank, 1, order=rank + 1, when=11.0)
    assert only(analyse(w.read())).ranks == (0, 1, 2, 3)


def test_a_killed_loader_worker_is_named(world):
    w = world()
    w.waiting(0, 1, 3)
    w.error(2, "RuntimeError", "DataLoader worker (pid 77) is killed by signal: Killed.", 5.0)
    w.exit(2, 1, order=1)
    a = analyse(w.read())
    assert a.facts.of("dataloader-worker.killed")[0].where.ranks == (2,)
    assert only(a).ranks == (2,)
    assert not a.facts.of("dataloader-worker.failed")


def test_a_nameless_traceback_goes_to_the_only_rank_that_can_have_raised_it(world):
    w = world()
    w.waiting(0, 1, 3)
    w.error(None, "ValueError", "bad", 5.0)
    w.exit(2, 1, order=1)
    a = analyse(w.read())
    assert a.facts.of("exception.raised")[0].where.ranks == (2,)
    w.exit(3, 1, order=2)
    assert analyse(w.read()).facts.of("exception.raised")[0].where.ranks == ()


def test_a_sigterm_that_one_rank_alone_got_killed_that_rank(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=15, order=1, when=50.0)
    for order, rank in enumerate((0, 1, 3), 2):
        w.exit(rank, signal=15, order=order, when=51.3, ours=True)
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("process-dead", (2,))
    assert [(f.where.ranks, f.get("signal")) for f in a.facts.of("process.killed")] == [((2,), 15)]
    assert not a.facts.of("process.terminated")


@pytest.mark.parametrize("gap", [0.0, 0.01, 0.2])
def test_ranks_that_end_together_were_told_through_the_launcher(world, gap):
    w = world()
    w.waiting(0, 1, 3)
    for order, rank in enumerate((2, 0, 1, 3)):
        w.exit(rank, signal=15, order=order + 1, when=50.0 + order * gap / 3, ours=order > 0)
    a = analyse(w.read())
    assert not a.facts.of("process.killed")
    assert a.facts.of("process.terminated")


def test_a_sigterm_without_a_clock_is_nobodys_alone(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=15, order=1, when=None)
    assert not analyse(w.read()).facts.of("process.killed")


@pytest.mark.parametrize("how", [{"told_to_end": 120.0}, {"ended": "code 1"}])
def test_ending_a_job_that_hung_before_explains_nothing_of_the_hang(world, how):
    w = world()
    w.waiting(0, 1, 3)
    w.behind(2)
    w.in_loader(2)
    w.stall(still=(0, 1, 3), detected=100.0, waited_s=20.0, **how)
    w.event("log", "Received 15 death signal, shutting down workers", None)
    for rank in range(4):
        w.exit(rank, signal=15, order=rank + 1, when=120.0 + rank / 100)
    a = analyse(w.read())
    assert not a.facts.of("process.terminated")
    assert (only(a).kind, only(a).ranks) == ("host-stall", (2,))


def test_a_job_that_was_told_to_end_without_a_hang_was_told_so(world):
    w = world()
    w.waiting(0, 1, 3)
    for rank in range(4):
        w.exit(rank, signal=15, order=rank + 1, when=120.0 + rank / 100)
    assert analyse(w.read()).facts.of("process.terminated")
