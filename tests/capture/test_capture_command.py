"""The capture command: on the spot, and warmed up for an order."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.job import JobView

COMMAND = [sys.executable, "-m", "fabwatch.watchdog.capture"]


def test_the_command_reads_job_json_and_leaves_a_ledger(stage: Any) -> None:
    stage.start()
    stage.job().save(stage.incident)
    ran = subprocess.run([*COMMAND, str(stage.incident), "--tier", "1"], timeout=100)
    assert ran.returncode == 0
    assert {e.rank for e in stage.ledger() if e.source == "process"} == {0}


def test_a_missing_or_broken_view_is_an_error_with_a_place(stage: Any) -> None:
    for text, said in ((None, "No such file"), ("{", "job.json: ")):
        if text is not None:
            (stage.incident / "job.json").write_text(text)
        ran = subprocess.run(
            [*COMMAND, str(stage.incident)], timeout=100, capture_output=True, text=True
        )
        assert ran.returncode == 1
        assert said in ran.stderr and "Traceback" not in ran.stderr


@pytest.fixture
def warmed() -> Any:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [*COMMAND, "--wait-fd", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stderr=subprocess.PIPE,
    )
    theirs.close()
    ours.settimeout(100)
    yield ours, process
    ours.close()
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=100)


def test_a_warmed_up_capture_goes_on_order_and_answers(stage: Any, warmed: Any) -> None:
    ours, process = warmed
    stage.start()
    order = {"incident": str(stage.incident), "tier": 1, "deadline": 30}
    order["job"] = msgspec.to_builtins(stage.job())
    ours.sendall(json.dumps(order).encode() + b"\n")
    answer = json.loads(ours.makefile().readline())
    assert answer["done"] is True and answer["code"] == 0
    assert process.wait(100) == 0
    assert JobView.load(stage.incident) == stage.job()
    assert {e.rank for e in stage.ledger() if e.source == "process"} == {0}


def test_a_warmed_up_capture_ends_quietly_with_its_agent(warmed: Any) -> None:
    ours, process = warmed
    ours.close()
    assert process.wait(100) == 0


def test_a_bad_order_is_refused(warmed: Any) -> None:
    ours, process = warmed
    ours.sendall(b"{nonsense\n")
    assert process.wait(100) == 2


@pytest.mark.slow
def test_nothing_is_left_when_a_capture_is_killed(stage: Any, warmed: Any) -> None:
    """SIGKILL of the capture ends its children, and the ranks run on."""
    ours, process = warmed
    for _ in range(4):
        stage.start("import time\nprint('up', flush=True)\nwhile True: time.sleep(0.01)")
    order = {"incident": str(stage.incident), "tier": 2, "deadline": 30}
    order["job"] = msgspec.to_builtins(stage.job())
    ours.sendall(json.dumps(order).encode() + b"\n")
    assert stage.eventually(lambda: bool(procfs.children(process.pid)))
    below = procfs.children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait(100)

    def ended() -> bool:
        return all((now := procfs.stat(pid)) is None or now.state == "Z" for pid in below)

    assert stage.eventually(ended, 60)
    for rank in stage.ranks:
        before = Path(f"/proc/{rank.pid}/schedstat").read_text()
        assert stage.eventually(
            lambda r=rank, b=before: Path(f"/proc/{r.pid}/schedstat").read_text() != b
        )
    assert os.getpid() not in below
