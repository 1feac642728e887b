"""What a host's kernel logged for somebody else, and how a job ends well, blame nobody."""

from __future__ import annotations

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.observations import LogEvent, Source, Stall

STARTED = 1_790_000_000.0


def kill(when: float) -> LogEvent:
    return LogEvent(
        Source("hosts/a/dmesg.txt", "kernel-log"),
        "kernel.oom-kill",
        7,
        "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB",
        when=when,
        fields=(("pid", "4711"),),
    )


def with_kill(world, when: float):
    w = world()
    for rank in range(4):
        w.trace(rank, [("all_reduce", True)] * 3)
    stall = Stall(Source("incident.json", "watch"), "stall", job_started=STARTED)
    w.add("stalls", stall)
    w.add("events", kill(when))
    return analyse(w.read())


def test_a_kill_from_before_the_job_began_is_none_of_its_business(world):
    assert not with_kill(world, STARTED - 60).facts.of("process.oom-killed")


def test_a_kill_of_a_python_process_while_the_job_ran_is_told(world):
    assert with_kill(world, STARTED + 60).facts.of("process.oom-killed")


@pytest.mark.parametrize("leaver", [0, 2])
def test_when_all_ranks_leave_with_code_zero_nobody_left_early(world, leaver):
    w = world()
    for rank in range(4):
        w.trace(rank, [("all_reduce", True), ("all_reduce", rank == leaver)])
    order = [leaver, *(r for r in range(4) if r != leaver)]
    for number, rank in enumerate(order, 1):
        w.exit(rank, code=0, order=number)
    assert not analyse(w.read()).facts.of("process.left")


@pytest.mark.parametrize("leaver", [0, 2])
def test_who_leaves_with_code_zero_before_the_others_fail_is_named(world, leaver):
    w = world()
    for rank in range(4):
        w.trace(
            rank, [("all_reduce", True)] * 2 + ([] if rank == leaver else [("all_reduce", False)])
        )
    w.exit(leaver, code=0, order=1)
    for number, rank in enumerate((r for r in range(4) if r != leaver), 2):
        w.exit(rank, code=1, order=number)
    (left,) = analyse(w.read()).facts.of("process.left")
    assert left.where.ranks == (leaver,)


def test_a_kill_while_every_rank_lives_was_another_programs(world):
    w = world()
    for rank in range(4):
        w.trace(rank, [("all_reduce", True)] * 3)
        w.process(rank)
    w.add("stalls", Stall(Source("incident.json", "watch"), "stall", job_started=STARTED))
    w.add("events", kill(STARTED + 60))
    assert not analyse(w.read()).facts.of("process.oom-killed")


@pytest.mark.parametrize("state", ["Z", "X", None])
def test_a_kill_while_a_rank_is_missing_or_a_corpse_is_told(world, state):
    w = world()
    for rank in range(4):
        w.trace(rank, [("all_reduce", True)] * 3)
        if rank != 2 or state is not None:
            w.process(rank, "S" if rank != 2 else state)
    w.add("stalls", Stall(Source("incident.json", "watch"), "stall", job_started=STARTED))
    w.add("events", kill(STARTED + 60))
    assert analyse(w.read()).facts.of("process.oom-killed")
