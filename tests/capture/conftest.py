"""Fixtures for captures: processes that play ranks, a job made of them, and its ledger."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Target
from fabwatch.watchdog.capture.files import Budget
from fabwatch.watchdog.capture.job import JobView, Options, RankProcess
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger

SECRET = "hf_QwErTyUiOpAsDfGhJkLzXcVb"
SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(300)\n"


def eventually(true: Callable[[], bool], seconds: float = 30.0) -> bool:
    """Whether ``true`` comes true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.01)
    return true()


class Stage:
    """A run directory, a sockets directory, and the processes that play its ranks."""

    eventually = staticmethod(eventually)
    secret = SECRET

    def __init__(self, root: Path, sockets: Path) -> None:
        self.run = root / "run"
        self.sockets = sockets
        self.incident = self.run / "incidents" / "0001"
        for folder in (self.incident, self.run / "live"):
            folder.mkdir(parents=True)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.ranks: list[RankProcess] = []

    def start(self, code: str = SLEEP, **env: str) -> RankProcess:
        """Start one more rank that runs ``code``; it has said ``up`` when this returns."""
        rank = len(self.ranks)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "RANK": str(rank), "HF_TOKEN": SECRET, **env},
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        now = procfs.stat(process.pid)
        assert now is not None
        made = RankProcess(
            rank=rank,
            local_rank=rank,
            pid=process.pid,
            start_ticks=now.start_ticks,
            cgroups=Path(f"/proc/{process.pid}/cgroup").read_text(),
        )
        self.ranks.append(made)
        return made

    def job(self, **options: object) -> JobView:
        """The view of what was started."""
        return JobView(
            run_dir=str(self.run),
            sockets=str(self.sockets),
            host="node-a",
            ranks=tuple(self.ranks),
            launcher_pid=os.getpid(),
            options=Options(**options),  # type: ignore[arg-type]
        )

    def target(self, rank: int | None = 0, seconds: float = 5.0, **options: object) -> Target:
        """What one collector is called with."""
        job = self.job(**options)
        who = None if rank is None else job.ranks[rank]
        budget = Budget(job.options.budget)
        return Target(job, self.incident, 1, budget, time.monotonic() + seconds, who)

    def ledger(self) -> list[Evidence]:
        """The incident's ledger; a line that cannot be read fails the test."""
        ledger, bad = Ledger.read(self.incident / "ledger.jsonl")
        assert bad == []
        return list(ledger)

    def end(self) -> None:
        """Kill what was started."""
        for process in self.processes:
            for number in (signal.SIGCONT, signal.SIGKILL):
                if process.poll() is None:
                    process.send_signal(number)
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A job without ranks; ``stage.start()`` adds them."""
    sockets = Path(tempfile.mkdtemp(prefix="fabwatch-", dir="/tmp"))
    made = Stage(tmp_path, sockets)
    yield made
    made.end()
    shutil.rmtree(sockets, ignore_errors=True)


Serve = Callable[[Path, Callable[[socket.socket], None]], None]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Listen on a unix socket and hand each connection to a function, in threads."""
    listeners: list[socket.socket] = []

    def start(path: Path, answer: Callable[[socket.socket], None]) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(16)
        listeners.append(listener)

        def one(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):  # the asker has had enough
                answer(connection)

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(connection,), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()

    yield start
    for listener in listeners:
        listener.close()


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A freezer cgroup (version 1) of our own; thawed and removed at the end."""
    group = FREEZER / f"fabwatch-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as err:
        pytest.skip(f"no freezer cgroup can be made here: {err}")
    yield group
    (group / "freezer.state").write_text("THAWED")

    def emptied() -> bool:
        for line in (group / "tasks").read_text().split():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                (FREEZER / "tasks").write_text(line)
        try:
            group.rmdir()
        except OSError:
            return False
        return True

    assert eventually(emptied)
