"""A hang that somebody ends before the diagnosis is through is judged by what was captured."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fabwatch.watchdog import procfs

pytest.importorskip("torch")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

TRAIN = """
import sys, time
import torch, torch.distributed as dist

def next_batch():
    time.sleep(600)

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
    time.sleep(0.05)
if dist.get_rank() == 1:
    next_batch()
dist.all_reduce(torch.ones(4))
"""


def eventually(true, why, seconds=120.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(why)


def read(file):
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        return {}


def children(pid):
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def launcher_of(stub):
    """The job's process: the child of the stub that is torchrun."""
    for pid in children(stub):
        if b"torch.distributed.run" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


@pytest.fixture
def hung(tmp_path):
    """A wrapped job of two ranks that hangs and was captured; (stub, its run directory)."""
    (tmp_path / "train.py").write_text(TRAIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FABWATCH", "RANK"))}
    words = [
        sys.executable, "-m", "fabwatch", "--out", "runs", "--stall-after", "3", "--grace", "60",
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-port", str(port), "train.py",
    ]  # fmt: skip
    stub = subprocess.Popen(
        words, cwd=tmp_path, env={**clean, "OMP_NUM_THREADS": "1"}, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def captured():
        return [f for f in tmp_path.glob("runs/*/incidents/*/incident.json")
                if read(f).get("captured")]  # fmt: skip

    try:
        (file,) = eventually(captured, "no incident was captured")
        yield stub, file.parent.parent.parent
    finally:
        launcher = launcher_of(stub.pid)
        for pid in [*(children(launcher) if launcher else []), launcher, stub.pid]:
            if pid is not None and (pid != stub.pid or stub.poll() is None):
                os.kill(pid, signal.SIGKILL)
        stub.wait(60)
        for file in tmp_path.glob("runs/*/manifest.json"):
            for rank in read(file).get("ranks", ()):
                now = procfs.stat(rank["pid"])
                if now is not None and now.start_ticks == rank["start_ticks"]:
                    os.kill(rank["pid"], signal.SIGKILL)


def judged(run):
    """The verdicts of run and incident, which agree and are of a hang, and accuse nobody else."""
    incident = run / "incidents" / "0001"
    verdict = read(run / "verdict.json")
    assert verdict["outcome"] in ("diagnosed", "cannot-tell")
    assert verdict["culprits"] == read(incident / "verdict.json")["culprits"]
    assert set(verdict["culprits"]["ranks"]) <= {1}
    assert [root["ranks"] for root in verdict["hang"]["roots"]] == [[1]]
    assert verdict["fabric"] != "convicted"
    assert (run / "summary.md").exists()
    return read(incident / "incident.json")


def test_sigterm_to_the_stub_ends_a_hang_with_a_verdict(hung):
    stub, run = hung
    stub.terminate()
    assert stub.wait(120) == 1, "torchrun ends with 1 then"
    assert judged(run)["ended"] == "code 1"


def test_sigterm_and_then_sigkill_as_of_a_scheduler_end_it_with_a_verdict(hung):
    stub, run = hung
    launcher = launcher_of(stub.pid)
    os.kill(launcher, signal.SIGTERM)
    os.kill(launcher, signal.SIGKILL)
    assert stub.wait(120) == -signal.SIGKILL
    assert judged(run)["ended"] == "signal 9"
