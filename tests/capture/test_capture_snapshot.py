"""A snapshot of real processes: every rank and source has a ledger line, nothing hangs it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import commands, run
from fabwatch.watchdog.capture.collector import Collector, Target, collectors
from fabwatch.watchdog.capture.files import Budget
from fabwatch.watchdog.capture.job import JobView
from fabwatch.watchdog.capture.outcome import Outcome
from fabwatch.watchdog.capture.run import capture_snapshot
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger, Status

D_STATE = """
import ctypes, os, time
libc = ctypes.CDLL(None)
print("up", flush=True)
# clone(CLONE_VFORK): the caller waits, uninterruptible, for its child to end.
if libc.syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:
    libc.prctl(1, 9, 0, 0, 0)
    time.sleep(300)
    os._exit(0)
"""


def lines(stage: Any, source: str, rank: int | None = None) -> list[Evidence]:
    return [e for e in stage.ledger() if e.source == source and e.rank == rank]


def snapshot(stage: Any, tier: int = 1, deadline: float = 30.0, **options: object) -> float:
    began = time.monotonic()
    capture_snapshot(
        stage.incident, stage.job(**options), tier=tier, snapshot=1, deadline_s=deadline
    )
    return time.monotonic() - began


def use(monkeypatch: pytest.MonkeyPatch, *them: Collector) -> None:
    monkeypatch.setattr(run, "collectors", lambda: them)


def rank_collector(name: str, collect: Any, deadline: float = 1.0, **more: Any) -> Collector:
    return Collector(name, "rank", 1, "process", deadline, collect, **more)


@pytest.mark.parametrize("tier", [1, 2])
def test_every_rank_and_source_has_a_line(stage: Any, tier: int) -> None:
    for _ in range(4):
        stage.start()
    snapshot(stage, tier)
    got = {(e.rank, e.collector) for e in stage.ledger()}
    for collector in collectors():
        if collector.tier == tier:
            ranks = range(4) if collector.scope == "rank" else [None]
            assert {(rank, collector.name) for rank in ranks} <= got
    for line in stage.ledger():
        if line.path:
            assert (stage.incident / line.path).stat().st_size == line.size
    assert JobView.load(stage.incident) == stage.job()


def test_a_rank_that_raised_nothing_is_no_gap_but_one_that_nobody_watched_is(stage: Any) -> None:
    stage.start()
    gone = stage.start()
    stage.processes[1].kill()
    stage.processes[1].wait()
    assert stage.eventually(lambda: procfs.stat(gone.pid) is None)
    snapshot(stage)
    (quiet,) = lines(stage, "exception", 0)
    assert quiet.status is Status.ABSENT and quiet.expected
    gaps = Ledger(stage.ledger()).gaps()
    assert not [gap for gap in gaps if gap.startswith("rank 0: exception")]
    assert [gap for gap in gaps if gap.startswith("rank 1: exception: the probe never ran")]
    assert [gap for gap in gaps if gap.startswith("rank 0: flight-recorder")]


def test_a_second_snapshot_lies_beside_the_first(stage: Any) -> None:
    stage.start()
    for number in (1, 2):
        capture_snapshot(stage.incident, stage.job(), tier=1, snapshot=number, deadline_s=30)
    first = stage.incident / "ranks/0/proc_rank_0.txt"
    second = stage.incident / "ranks/0/snapshot-2/proc_rank_0.txt"
    assert first.read_text().startswith(f"# /proc/{stage.ranks[0].pid}/stat\n")
    assert second.read_text().startswith(f"# /proc/{stage.ranks[0].pid}/stat\n")
    assert {e.snapshot for e in lines(stage, "process", 0)} == {1, 2}


def test_a_stopped_rank_is_seen_stopped_and_is_not_attached_to(stage: Any) -> None:
    rank = stage.start()
    stage.processes[0].send_signal(signal.SIGSTOP)
    assert stage.eventually(lambda: procfs.stat(rank.pid).state == "T")
    snapshot(stage, 1)
    snapshot(stage, 2)
    text = (stage.incident / "ranks/0/proc_rank_0.txt").read_text()
    assert "State:\tT (stopped)" in text
    (native,) = lines(stage, "native-stack", 0)
    assert native.status is Status.FAILED and "stopped (state T)" in native.reason
    assert lines(stage, "python-stack", 0)[0].status is Status.OK
    assert procfs.stat(rank.pid).state == "T"


def test_a_frozen_rank_is_seen_frozen_and_goes_on_when_thawed(stage: Any, freezer: Path) -> None:
    rank = stage.start("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)")
    (freezer / "tasks").write_text(str(rank.pid))
    (freezer / "freezer.state").write_text("FROZEN")
    assert stage.eventually(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
    snapshot(stage, 1)
    snapshot(stage, 2)
    text = (stage.incident / "ranks/0/proc_rank_0.txt").read_text()
    assert f"# cgroup /{freezer.name} freezer.state\nFROZEN\n" in text
    (native,) = lines(stage, "native-stack", 0)
    assert "frozen" in native.reason
    (freezer / "freezer.state").write_text("THAWED")
    before = Path(f"/proc/{rank.pid}/schedstat").read_text()
    assert stage.eventually(lambda: Path(f"/proc/{rank.pid}/schedstat").read_text() != before)
    assert procfs.stat(rank.pid).state in "SRD"


def test_an_uninterruptible_rank_is_read_without_being_attached_to(stage: Any) -> None:
    rank = stage.start(D_STATE)
    if not stage.eventually(lambda: procfs.stat(rank.pid).state == "D", 10):
        pytest.skip("this kernel shows no D state for clone(CLONE_VFORK)")
    snapshot(stage, 1)
    snapshot(stage, 2)
    assert ") D " in (stage.incident / "ranks/0/proc_rank_0.txt").read_text()
    (native,) = lines(stage, "native-stack", 0)
    assert native.status is Status.FAILED and "state D" in native.reason
    assert procfs.stat(rank.pid).state != "T"


def hang(target: Target, out: Path) -> Iterable[Outcome]:
    """Block for ever and ignore every signal that can be ignored."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with contextlib.suppress(ValueError):  # not the child's main thread
            signal.signal(number, signal.SIG_IGN)
    if target.process.rank == 0:
        time.sleep(300)
    yield target.save(out / "fine.txt", b"fine\n")


def test_a_collector_that_blocks_is_killed_and_takes_nothing_else_with_it(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.start()
    stage.start()
    use(monkeypatch, rank_collector("hang", hang))
    assert snapshot(stage) < 25
    (late,) = lines(stage, "process", 0)
    assert late.status is Status.TIMED_OUT and "no answer in" in late.reason
    (fine,) = lines(stage, "process", 1)
    assert fine.status is Status.OK
    assert not children_of(os.getpid()) & started_here(stage)


def children_of(pid: int) -> set[int]:
    return set(procfs.children(pid))


def started_here(stage: Any) -> set[int]:
    """Children of this process that are neither ranks nor were there before."""
    return children_of(os.getpid()) - {p.pid for p in stage.processes}


def test_a_collector_that_cannot_be_killed_is_left_behind(
    stage: Any, monkeypatch: pytest.MonkeyPatch, freezer: Path
) -> None:
    stage.start()
    left: list[int] = []

    def freeze_itself(target: Target, out: Path) -> Iterable[Outcome]:
        """SIGKILL does not end a process in a frozen version 1 cgroup: as in state D."""
        (freezer / "tasks").write_text(str(os.getpid()))
        (freezer / "freezer.state").write_text("FROZEN")
        time.sleep(300)
        yield from ()

    use(monkeypatch, rank_collector("ice", freeze_itself))
    assert snapshot(stage, deadline=4.0) < 30
    (line,) = lines(stage, "process", 0)
    left = [int(x) for x in (freezer / "tasks").read_text().split()]
    assert line.status is Status.TIMED_OUT
    assert "cannot be killed" in line.reason and "left behind" in line.reason
    assert str(left[0]) in line.reason
    (freezer / "freezer.state").write_text("THAWED")
    os.waitpid(left[0], 0)


def test_a_broken_collector_is_a_line_not_a_crash(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.start()

    def broken(target: Target, out: Path) -> Iterable[Outcome]:
        raise KeyError("nothing here")
        yield

    def dies(target: Target, out: Path) -> Iterable[Outcome]:
        os.kill(os.getpid(), signal.SIGSEGV)
        yield from ()

    use(monkeypatch, rank_collector("broken", broken), rank_collector("dies", dies))
    snapshot(stage)
    reasons = {e.collector: (e.status, e.reason) for e in stage.ledger()}
    assert reasons["broken"] == (
        Status.FAILED,
        "collector broken broke: KeyError: 'nothing here'",
    )
    assert reasons["dies"][0] is Status.FAILED and "without an answer" in reasons["dies"][1]


def test_what_starts_after_the_deadline_is_listed_too(
    stage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.start()

    def slow(target: Target, out: Path) -> Iterable[Outcome]:
        time.sleep(300)
        yield from ()

    first = rank_collector("a-slow", slow, deadline=60)
    use(monkeypatch, first, rank_collector("b-never", slow, deadline=60))
    snapshot(stage, deadline=1.0, workers=1)
    assert {(e.collector, e.status) for e in stage.ledger()} == {
        ("a-slow", Status.TIMED_OUT),
        ("b-never", Status.TIMED_OUT),
    }


def test_without_py_spy_the_rest_is_taken(stage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.start()
    found = commands.program
    monkeypatch.setattr(commands, "program", lambda n: None if n == "py-spy" else found(n))
    snapshot(stage, 1)
    snapshot(stage, 2)
    for source in ("python-stack", "native-stack"):
        (line,) = lines(stage, source, 0)
        assert line.status is Status.ABSENT and "pip install py-spy" in line.reason
    assert lines(stage, "process", 0)[0].status is Status.OK


HANGING_TRACER = """#!{python}
import ctypes, sys, time
pid = int(sys.argv[sys.argv.index("--pid") + 1])
libc = ctypes.CDLL(None)
libc.ptrace(16, pid, 0, 0)  # PTRACE_ATTACH, and never wait for the stop
open("{flag}", "w").close()
time.sleep(300)
"""


def test_a_tracer_killed_half_way_leaves_its_target_running(
    stage: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing twin of attaching: py-spy hangs while it holds the rank."""
    rank = stage.start("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)")
    spy, flag = tmp_path / "py-spy", tmp_path / "attached"
    python = shutil.which("python3")
    spy.write_text(HANGING_TRACER.format(python=python, flag=flag))
    spy.chmod(0o755)
    found = commands.program
    monkeypatch.setattr(commands, "program", lambda n: str(spy) if n == "py-spy" else found(n))
    snapshot(stage, 2)
    assert flag.exists(), "the tracer never attached, so this test shows nothing"
    (line,) = lines(stage, "native-stack", 0)
    assert line.status is Status.TIMED_OUT
    assert stage.eventually(lambda: procfs.stat(rank.pid).state in "SR")
    before = Path(f"/proc/{rank.pid}/schedstat").read_text()
    assert stage.eventually(lambda: Path(f"/proc/{rank.pid}/schedstat").read_text() != before)
    assert procfs.tracer(rank.pid) == 0


def test_another_users_processes_are_failures_not_crashes(stage: Any) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    stage.start()
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(folder, 65534, 65534)
    collectors()
    job = msgspec.structs.replace(stage.job(), run_dir=str(folder))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            for tier in (1, 2):
                capture_snapshot(folder / "i", job, tier=tier, snapshot=1, deadline_s=30)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stage.incident = folder / "i"
    try:
        assert lines(stage, "python-stack", 0)[0].status is Status.FAILED
        assert lines(stage, "environment", 0)[0].status is Status.FAILED
        assert "ermission" in lines(stage, "environment", 0)[0].reason
        (process,) = lines(stage, "process", 0)
        assert process.status is Status.OK and "not readable" in process.reason
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "tiny"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k,mode=0700", "fabwatch-test", str(place)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_in_the_ledger_as_far_as_it_fits(stage: Any, tiny_disk: Path) -> None:
    stage.start()
    incident = tiny_disk / "0001"
    capture_snapshot(incident, stage.job(), tier=1, snapshot=1, deadline_s=30)
    capture_snapshot(incident, stage.job(), tier=2, snapshot=1, deadline_s=30)
    stage.incident = incident
    full = [e for e in stage.ledger() if "disk full" in e.reason]
    assert full and all(e.status is Status.FAILED and not e.path for e in full)
    assert not list(incident.rglob(".*.part"))


def test_a_disk_without_any_room_is_no_crash(
    stage: Any, tiny_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage.start()
    incident = tiny_disk / "0001"
    incident.mkdir()
    with contextlib.suppress(OSError):  # that is the point
        (tiny_disk / "filler").write_bytes(b"x" * (1 << 20))
    capture_snapshot(incident, stage.job(), tier=1, snapshot=1, deadline_s=30)
    assert "lines could not be written" in capsys.readouterr().err


def test_the_budget_holds_and_says_so(stage: Any) -> None:
    stage.start()
    snapshot(stage, 1, budget=2_000)
    written = sum(e.size for e in {e.path: e for e in stage.ledger() if e.path}.values())
    assert written <= 2_000
    assert [e for e in stage.ledger() if "are used up" in e.reason]


def test_earlier_captures_count_against_the_budget(stage: Any) -> None:
    stage.start()
    snapshot(stage, 1)
    used = sum(e.size for e in stage.ledger())
    assert used > 0
    capture_snapshot(stage.incident, stage.job(budget=used), tier=1, snapshot=2, deadline_s=30)
    assert not [e for e in stage.ledger() if e.snapshot == 2 and e.size > 0]


def test_large_artefacts_leave_room_for_small_ones() -> None:
    budget = Budget(10 << 20)
    assert budget.take(9 << 20)
    assert not budget.take(300 << 10)
    assert budget.take(200 << 10)
    assert budget.used == (9 << 20) + (200 << 10)


def test_collectors_can_be_left_out(stage: Any) -> None:
    stage.start()
    snapshot(stage, 1, skip=("python-stack",))
    assert not lines(stage, "python-stack", 0)
    snapshot(stage, 2, native=False)
    assert not lines(stage, "native-stack", 0)
    assert lines(stage, "environment", 0)
