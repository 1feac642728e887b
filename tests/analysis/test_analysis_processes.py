"""Stopped, frozen, starved and waiting processes; what moved between two looks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.observations import Frame
from fabwatch.watchdog.evidence.reading import read

REGEX = (("match", "re.py", 20), ("parse", "/job/text.py", 3))


def facts(world_made, name):
    return [f.where.ranks for f in analyse(world_made.read()).facts.of(name)]


def test_a_stale_page_and_one_thread_with_the_gil_in_every_look_is_a_held_gil(world):
    for stale, held in ((True, [(1,)]), (False, [])):
        w = world()
        w.waiting(0, 2, 3)
        w.behind(1)
        for snapshot in (1, 2):
            w.stack(1, *REGEX, snapshot=snapshot, active=True, gil=True)
            w.page(1, snapshot=snapshot, stale=stale)
        assert facts(w, "gil.held") == held
        root = analyse(w.read()).hang.roots[0]
        assert (root.kind, root.ranks) == ("host-stall", (1,))


@pytest.mark.parametrize(
    ("looks", "held"),
    [
        ([(1, 9, 4.5)], []),
        ([(1, 9, 4.5), (2, 9, 9.0)], [(1,)]),
        ([(1, 9, 4.5), (2, 12, 4.0)], []),
        ([(1, 9, 12.0)], [(1,)]),
    ],
    ids=["one look", "two looks", "it ticked in between", "one look at an old page"],
)
def test_a_call_that_keeps_the_gil_for_a_few_seconds_holds_nobody_up_for_good(world, looks, held):
    w = world()
    w.waiting(0, 2, 3)
    w.behind(1)
    for snapshot, tick, age_s in looks:
        w.stack(1, *REGEX, snapshot=snapshot, active=True, gil=True)
        w.page(1, snapshot=snapshot, stale=True, tick=tick, age_s=age_s)
    assert facts(w, "gil.held") == held


def test_a_gil_in_a_thread_without_python_frames_is_an_interpreter_that_ends(world):
    for frame, held in ((("gc_collect_main", "libpython3.11.so.1.0", 0), []), (REGEX[0], [(1,)])):
        w = world()
        w.waiting(0, 2, 3)
        w.behind(1)
        w.page(1, stale=True)
        w.stack(1, frame, active=True, gil=True)
        assert facts(w, "gil.held") == held


def test_a_gil_that_changes_hands_is_not_held(world):
    w = world()
    w.behind(1)
    w.page(1, stale=True)
    w.stack(1, *REGEX, active=True, gil=True)
    w.stack(1, ("other", "/job/text.py", 9), snapshot=2, active=True, gil=True)
    assert facts(w, "gil.held") == []


def test_without_a_page_one_look_at_a_gil_proves_nothing_but_two_do(world):
    w = world()
    w.behind(1)
    w.stack(1, *REGEX, active=True, gil=True)
    assert facts(w, "gil.held") == []
    w.stack(1, *REGEX, snapshot=2, active=True, gil=True)
    assert facts(w, "gil.held") == [(1,)]


def test_a_stopped_process_with_a_stale_page_is_stopped_and_holds_no_gil(world):
    w = world()
    w.waiting(0, 2, 3)
    w.page(1, stale=True)
    w.stack(1, *REGEX, gil=True)
    w.process(1, "T")
    assert facts(w, "gil.held") == []
    assert facts(w, "process.stopped") == [(1,)]
    assert facts(w, "page.stale") == [(1,)]


def test_a_process_that_runs_again_is_not_stopped(world):
    w = world()
    w.process(1, "T", snapshot=1)
    w.process(1, "S", snapshot=2)
    a = analyse(w.read())
    assert not a.facts.of("process.stopped")
    assert any("runs again" in str(doubt) for doubt in a.contradictions)


def test_disk_wait_counts_only_when_it_lasts_and_names_storage_by_its_place(world):
    w = world()
    w.process(1, "D", wchan="nfs_wait_bit_killable")
    w.process(1, "D", snapshot=2, wchan="nfs_wait_bit_killable")
    w.process(2, "D", wchan="io_schedule")
    w.process(2, "R", snapshot=2)
    w.process(3, "D", wchan="futex_wait")
    assert facts(w, "process.uninterruptible") == [(1,), (3,)]
    assert facts(w, "storage.stalled") == [(1,)]


def test_everybody_in_the_same_storage_wait_is_nobodys_fault(world):
    for wchan, kinds in (("nfs_wait", ["external-dependency"]), ("", [])):
        w = world()
        for rank in range(4):
            w.behind(rank)
            w.stack(rank, ("load_shard", "/job/data.py", 7), ("main", "/job/train.py", 3))
            w.process(rank, "D" if wchan else "S", wchan=wchan)
        a = analyse(w.read())
        assert [r.kind for r in a.hang.roots] == kinds
        assert all(r.ranks == () for r in a.hang.roots)
        assert a.facts.of("wait.all-idle-same-stack")


def test_io_and_cpu_that_move_are_said_and_a_timeout_then_was_short(world):
    for moved in (True, False):
        w = world()
        w.waiting(1, 2, 3)
        w.behind(0)
        for snapshot in (1, 2):
            w.stack(0, ("save_checkpoint", "/job/train.py", 9), snapshot=snapshot)
            bytes_ = 1000 * snapshot if moved else 1000
            w.process(0, snapshot=snapshot, write_bytes=bytes_, cpu_ticks=bytes_)
        w.event("gloo.timeout", "gloo/unbound_buffer.cc:78] Timed out waiting 25000ms for recv", 1)
        assert facts(w, "io.advancing") == ([(0,)] if moved else [])
        assert facts(w, "cpu.advancing") == ([(0,)] if moved else [])
        assert facts(w, "timeout.short") == ([(0,)] if moved else [])


def test_the_wait_is_exceeded_only_past_its_limit(world):
    for waited, said in ((59.0, 0), (61.0, 1)):
        w = world()
        w.waiting(0, 1, 3)
        w.behind(2)
        w.in_loader(2)
        w.stall(still=(0, 1, 3), waited_s=waited, longest_wait_s=1.0)
        assert len(facts(w, "wait.exceeded")) == said


def test_unknown_is_told_from_no(world):
    w = world()
    w.waiting(0, 1, 3)
    assert analyse(w.read()).facts.known("process.stopped").value == "unknown"
    for rank in range(4):
        w.process(rank)
    assert analyse(w.read()).facts.known("process.stopped").value == "no"


def test_a_loader_worker_is_not_taken_for_its_rank(world, edit):
    w = world()
    w.waiting(0, 1, 3)
    w.behind(2)
    w.process(2)
    w.in_loader(2)
    worker = edit(w.other["stacks"][-1], pid=9999, threads=())
    w.other["stacks"].insert(0, worker)
    root = analyse(w.read()).hang.roots[0]
    assert (root.ranks, root.stage) == ((2,), "dataloader")


def test_a_rank_that_a_stack_collector_holds_for_a_moment_is_not_stopped(world):
    w = world()
    w.waiting(0, 1, 3)
    w.behind(2)
    w.in_loader(2)
    w.process(0, "t", tracer_pid=4711)
    w.process(1, "S")
    w.process(1, "t", snapshot=2, tracer_pid=4712)
    a = analyse(w.read())
    assert not a.facts.of("process.stopped")
    assert [r.ranks for r in a.hang.roots] == [(2,)]
    assert not a.contradictions


def test_a_debugger_that_keeps_a_rank_stopped_it(world):
    w = world()
    w.waiting(0, 1, 3)
    for snapshot in (1, 2):
        w.process(2, "t", snapshot=snapshot, tracer_pid=4711)
    assert facts(w, "process.stopped") == [(2,)]


def test_a_stopped_rank_that_is_killed_after_the_capture_was_stopped(world):
    w = world()
    w.waiting(0, 1, 3)
    w.process(2, "T")
    w.process(2, "Z", snapshot=2)
    w.exit(2, signal=9, order=1, when=120.0)
    w.stall(still=(0, 1, 3), waited_s=9.0, detected=100.0)
    a = analyse(w.read())
    assert [(r.kind, r.ranks) for r in a.hang.roots] == [("process-stopped", (2,))]
    assert not a.facts.of("process.killed")


def test_a_kill_before_the_standstill_was_noted_is_its_cause(world):
    w = world()
    w.waiting(0, 1, 3)
    w.exit(2, signal=9, order=1, when=95.0)
    w.stall(still=(0, 1, 3), waited_s=9.0, detected=100.0)
    assert facts(w, "process.killed") == [(2,)]


def test_an_interpreter_on_its_way_out_holds_no_gil(world):
    w = world()
    w.waiting(0, 1, 3)
    w.behind(2)
    w.page(2, stale=True)
    w.stack(2, gil=True, active=True)
    w.error(2, "KeyboardInterrupt", "", when=99.0)
    w.stall(still=(0, 1, 3), waited_s=9.0, detected=100.0)
    a = analyse(w.read())
    assert not a.facts.of("gil.held")
    assert a.hang.roots == ()
    assert any("way out" in str(doubt) for doubt in a.contradictions)


LISTED = """# grep -E 'Name|State|Tgid|TracerPid' /proc/$p/status
rank 0 pid 100
Name:\tpython
State:\tR (running)
Tgid:\t100
TracerPid:\t0
rank 1 pid 101
Name:\tpython
State:\tt (tracing stop)
Tgid:\t101
TracerPid:\t{tracer}
# again 15:41:15, rank 1 only
State:\t{again}
TracerPid:\t{tracer}
"""


@pytest.mark.parametrize(("again", "stopped"), [("t (tracing stop)", {1}), ("R (running)", set())])
def test_states_listed_by_rank_are_those_ranks_and_a_second_look_decides(
    tmp_path: Path, again: str, stopped: set[int]
) -> None:
    (tmp_path / "proc_status.txt").write_text(LISTED.format(tracer=77, again=again))
    facts = analyse(read([tmp_path])).facts
    assert {r for f in facts.of("process.stopped") for r in f.where.ranks} == stopped


@pytest.mark.parametrize(
    ("tracer", "stopped"), [("gdb -p 101", True), ("py-spy dump -p 101", False)]
)
def test_one_look_suffices_when_a_persons_debugger_holds_the_process(
    tmp_path: Path, tracer: str, stopped: bool
) -> None:
    (tmp_path / "torchrun.log").write_text("[rank1]:[E1 ProcessGroupNCCL.cpp:1] [PG 0 Rank 1] x\n")
    (tmp_path / "rank_1_status.txt").write_text(
        "Name:\tpython\nState:\tt (tracing stop)\nPid:\t101\nTracerPid:\t77\n"
    )
    (tmp_path / "ps.txt").write_text(
        "    PID    PPID USER     TT           ELAPSED STAT CMD\n"
        f"     77      60 oncall   pts/7          19:02 S+   {tracer}\n"
    )
    assert bool(analyse(read([tmp_path])).facts.of("process.stopped")) is stopped


def test_lines_of_grep_over_proc_are_states_of_each_process(tmp_path: Path) -> None:
    text = "/proc/100/status:State:\tR (running)\n/proc/101/status:State:\tT (stopped)\n"
    (tmp_path / "states.txt").write_text(text)
    assert [(s.pid, s.state) for s in read([tmp_path]).processes] == [(100, "R"), (101, "T")]


def test_a_thread_on_a_cpu_tells_that_its_rank_is_not_stopped(tmp_path: Path) -> None:
    head = "Process 7: python t.py\nPython v3.11.1 (/p)\n\n"
    dump = head + 'Thread 7 ({}): "MainThread"\n    f (a.py:1)\n'
    (tmp_path / "pyspy_rank_0.txt").write_text(dump.format("active"))
    (tmp_path / "pyspy_rank_1.txt").write_text(dump.format("idle").replace("7", "8"))
    found = analyse(read([tmp_path])).facts.of("thread.running")
    assert [f.where.ranks for f in found] == [(0,)]


def test_what_a_rank_wrote_because_it_was_asked_for_its_dump_is_not_its_own_work(world):
    for written, said in ((40_000, []), (4_000_000, [(0,)])):
        w = world()
        w.waiting(1, 2, 3)
        w.behind(0)
        for place, trace in w.traces.items():
            framed = replace(trace.ops[-1], frames=(Frame("step", "/job/train.py", 3),))
            pickled = replace(trace.source, path=trace.source.path.removesuffix(".json"))
            w.traces[place] = replace(trace, source=pickled, ops=(*trace.ops[:-1], framed))
        w.process(0, snapshot=1, write_bytes=0)
        w.process(0, snapshot=2, write_bytes=written)
        assert facts(w, "io.advancing") == said
