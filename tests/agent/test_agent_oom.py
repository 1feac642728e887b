"""Whether the kernel's OOM killer ended a rank, from counters, in a real memory cgroup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from fabwatch.chaos.drills import cgroups
from fabwatch.watchdog.agent.oom import OomWatch

EATER = (
    "import sys; sys.stdin.readline(); hoard = []\n"
    "while True: hoard.append(bytearray(b'x' * (1 << 20)))\n"
)


@pytest.fixture
def limited():
    """A process that waits for a line before it eats memory, in a cgroup of 64 MiB."""
    if not cgroups.available("memory"):
        pytest.skip("this host lets nobody make a memory cgroup")
    with cgroups.cgroup("memory") as (path, v2):
        process = subprocess.Popen([sys.executable, "-c", EATER], stdin=subprocess.PIPE, text=True)
        try:
            cgroups.limit_memory(path, v2, 64 << 20)
            cgroups.move(path, process.pid)
            yield process
        finally:
            process.kill()
            process.communicate(timeout=30)


def wait_for_zombie(pid: int) -> None:
    """Until the process has ended; nobody reaps it meanwhile."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_kill_by_the_cgroup_s_limit_is_told_although_the_dead_process_has_left_it(limited):
    watch = OomWatch()
    watch.refresh([limited.pid])
    limited.stdin.write("\n")
    limited.stdin.flush()
    wait_for_zombie(limited.pid)
    assert watch.killed(limited.pid) is True


def test_a_kill_by_somebody_in_the_same_cgroup_is_none(limited):
    watch = OomWatch()
    watch.refresh([limited.pid])
    time.sleep(0.1)
    limited.send_signal(signal.SIGKILL)
    wait_for_zombie(limited.pid)
    assert watch.killed(limited.pid) is False
