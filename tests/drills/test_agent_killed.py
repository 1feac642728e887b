"""The agent is killed at any moment and the job never knows."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the job is a real one")

JOB = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "fabwatch.chaos.workloads.train"]
SECONDS = 5.0
MOMENTS = 20


def agents_of(folder: Path) -> list[int]:
    """Agents (and their helpers) of runs below ``folder``, by what their command lines name."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"fabwatch.watchdog.agent" in words and any(
                word.startswith(str(folder).encode()) for word in words
            ):
                found.append(int(entry.name))
    return found


def one(folder: Path, moment: float) -> tuple[int, bytes, int]:
    """Run the wrapped job, kill its agent after ``moment`` s: exit code, output, kills."""
    folder.mkdir()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("FABWATCH_", "TORCH"))}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    with (folder / "stderr").open("wb") as stderr, (folder / "stdout").open("wb") as stdout:
        job = subprocess.Popen(
            [sys.executable, "-m", "fabwatch", "--out", folder, *JOB, "--seconds", str(SECONDS)],
            stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environ, cwd=folder,
        )  # fmt: skip
        time.sleep(moment)
        killed = 0
        until = time.monotonic() + 10  # a moment before the agent exists waits for it
        while job.poll() is None and not killed and time.monotonic() < until:
            for pid in agents_of(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
            time.sleep(0.02)
        try:
            code = job.wait(timeout=90)
        finally:
            if job.poll() is None:
                job.kill()
    return code, (folder / "stdout").read_bytes(), killed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_agent_killed_at_twenty_random_moments_changes_nothing(tmp_path):
    """Exit code and standard output are the bare job's, and no process of ours is left."""
    rng = random.Random(7)
    moments = [rng.uniform(0, SECONDS + 4) for _ in range(MOMENTS)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(one, [tmp_path / f"{i}" for i in range(MOMENTS)], moments))
    assert [code for code, _, _ in results] == [0] * MOMENTS
    assert {output for _, output, _ in results} == {b"train: begin\ntrain: end\n"}
    # most moments found an agent: a test in which nothing was killed would prove nothing
    assert sum(1 for _, _, killed in results if killed) >= MOMENTS * 3 // 4
    deadline = time.monotonic() + 20
    while agents_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert agents_of(tmp_path) == []
