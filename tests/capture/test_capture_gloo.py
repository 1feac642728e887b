"""A real Gloo job with the probe in its ranks, captured while one rank holds the others up."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.job import RankProcess
from fabwatch.watchdog.capture.run import capture_snapshot
from fabwatch.watchdog.evidence.ledger import Status
from fabwatch.watchdog.launch import arming

pytest.importorskip("torch")
WORLD = 4
TRAIN = """
import sys, time
import torch, torch.distributed as dist

def wait_for_data(src):
    time.sleep(300)

dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
open(sys.argv[1] + "/ready.%d" % dist.get_rank(), "w").close()
if dist.get_rank() == 1:
    wait_for_data(0)
dist.all_reduce(torch.ones(4))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_held_up_gloo_job_is_captured_whole(stage: Any, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for rank in range(WORLD):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(WORLD),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "FABWATCH_RUN_DIR": str(stage.run),
            "FABWATCH_RUN_ID": "test",
            "FABWATCH_SOCKETS": str(stage.sockets),
            "PYTHONPATH": str(arming.probe_site()),
            "HF_TOKEN": stage.secret,
        }
        log = (tmp_path / f"rank{rank}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, str(script), str(tmp_path)], env=env, stdout=log, stderr=log
        )
        log.close()
        stage.processes.append(process)
        now = procfs.stat(process.pid)
        stage.ranks.append(
            RankProcess(rank=rank, local_rank=rank, pid=process.pid, start_ticks=now.start_ticks)
        )

    def ready() -> bool:
        return all(
            (tmp_path / f"ready.{r.rank}").exists()
            and (stage.run / "live" / f"{r.pid}.page").exists()
            and (stage.sockets / f"w{r.pid}.sock").exists()
            and (stage.sockets / f"p{r.pid}.sock").exists()
            for r in stage.ranks
        )

    assert stage.eventually(ready, 200), [p.poll() for p in stage.processes]
    assert stage.eventually(lambda: waiting(stage) == {0, 2, 3}, 60)
    # The first attempt at frames and native stacks reads the symbols of libtorch: many seconds
    # where processors are scarce. A later one shows that what was late came after all.
    for number in (1, 2, 3):
        for tier in (1, 2):
            capture_snapshot(stage.incident, stage.job(), tier=tier, snapshot=number, deadline_s=60)
        got = {(e.rank, e.source): e for e in stage.ledger()}
        if Status.TIMED_OUT not in {line.status for line in got.values()}:
            break
    for rank in range(WORLD):
        for source in (
            "flight-recorder", "pg-status", "python-stack", "native-stack", "process",
            "flight-recorder-frames", "environment", "libraries",
        ):  # fmt: skip
            line = got[rank, source]
            late = source == "native-stack" and line.status is Status.TIMED_OUT
            assert line.status is Status.OK or late, (rank, line.reason)
            assert line.snapshot == number
    for rank in range(WORLD):
        again = "." if number == 1 else f"snapshot-{number}"
        folder = stage.incident / "ranks" / str(rank) / again
        dump = json.loads((folder / f"fr_trace_rank_{rank}.json").read_text())
        assert dump["entries"][-1]["retired"] is (rank == 1)
        spied = (folder / f"pyspy_rank_{rank}.txt").read_text()
        if rank == 1:
            assert "wait_for_data (train.py" in spied and "            src: 0\n" in spied
        else:
            assert "all_reduce (torch/distributed/" in spied
        page = json.loads((folder / f"pg_status_rank_{rank}.json").read_text())
        assert page["rank"] == rank and page["alive"] is True
        with_frames = plain((folder / f"fr_trace_rank_{rank}").read_bytes())
        assert any(f["filename"].endswith("train.py") for f in with_frames["entries"][-1]["frames"])
        assert "libtorch_cpu.so\t" in (folder / f"libraries_rank_{rank}.txt").read_text()
        assert (stage.incident / f"job.rank_{rank}.rank{rank}.log").exists()
    for file in stage.incident.rglob("*"):
        assert not file.is_file() or stage.secret.encode() not in file.read_bytes(), file
    assert all(process.poll() is None for process in stage.processes)


def waiting(stage: Any) -> set[int]:
    """Ranks whose page says that they have entered what they have not finished."""
    from fabwatch.watchdog.progress.page import read_page

    found = set()
    for rank in stage.ranks:
        page = read_page(stage.run / "live" / f"{rank.pid}.page")
        if page and any(mark.enqueued > mark.completed for _, mark in page.status):
            found.add(rank.rank)
    return found


def plain(data: bytes) -> Any:
    """Load a pickle that may name no globals."""

    class Loader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            raise pickle.UnpicklingError(f"{module}.{name}")

    return Loader(io.BytesIO(data)).load()
