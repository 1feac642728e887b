"""Holding a launcher: it stands still for as long as asked, and never a moment because of us."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fabwatch.watchdog.agent.hold import LIMIT_S, Answer, Holder

COUNT = """
import os, signal, sys, time
caught = []
signal.signal(signal.SIGUSR1, lambda *_: caught.append(1))
n = 0
while True:
    n += 1
    os.pwrite(1, f"{n} {len(caught)}".encode().ljust(40), 0)
    time.sleep(0.002)
"""


def wait_for(true, seconds=20.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = true()
        if found:
            return found
        time.sleep(0.002)
    return true()


@pytest.fixture
def holder():
    one = Holder()
    yield one
    one.close()


@pytest.fixture
def counter(tmp_path):
    """A process that counts, and a function that reads (count, signals caught)."""
    file = tmp_path / "count"
    with file.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", COUNT], stdout=out)

    def read():
        text = file.read_text().split()
        return (int(text[0]), int(text[1])) if len(text) == 2 else (0, 0)

    assert wait_for(lambda: read()[0] > 3)
    process.read = read
    yield process
    process.kill()
    process.wait()


def answer(holder, what, seconds=20.0):
    got: list[Answer] = []

    def came():
        got.extend(holder.answers())
        return any(a.what == what for a in got)

    assert wait_for(came, seconds), got
    return got


def test_a_held_process_does_not_run_and_runs_on_after_release(holder, counter):
    holder.hold(counter.pid, LIMIT_S)
    answer(holder, "held")
    before = counter.read()
    time.sleep(0.3)
    assert counter.read() == before
    holder.release()
    answer(holder, "released")
    assert wait_for(lambda: counter.read()[0] > before[0] + 3)
    assert counter.poll() is None


def test_it_lets_go_by_itself_at_the_limit(holder, counter):
    holder.hold(counter.pid, 0.2)
    answer(holder, "released")
    before = counter.read()
    assert wait_for(lambda: counter.read()[0] > before[0])


def test_more_than_the_limit_is_not_granted(holder, counter):
    began = time.monotonic()
    holder.hold(counter.pid, 3600)
    answer(holder, "released")
    assert time.monotonic() - began >= LIMIT_S - 0.1


def test_a_signal_that_comes_during_the_hold_is_delivered_after_it(holder, counter):
    holder.hold(counter.pid)
    answer(holder, "held")
    counter.send_signal(signal.SIGUSR1)
    holder.release()
    answer(holder, "released")
    assert wait_for(lambda: counter.read()[1] == 1)


@pytest.mark.parametrize("round_", range(5))
def test_a_signal_that_races_with_the_hold_is_not_lost(holder, counter, round_):
    counter.send_signal(signal.SIGUSR1)
    holder.hold(counter.pid, 0.05)
    answer(holder, "released")
    assert wait_for(lambda: counter.read()[1] == 1)


def test_if_the_holder_is_killed_the_process_runs_on(holder, counter):
    holder.hold(counter.pid)
    answer(holder, "held")
    before = counter.read()
    os.kill(holder.pid, signal.SIGKILL)
    assert wait_for(lambda: counter.read()[0] > before[0] + 3)


def test_if_the_owner_of_the_holder_is_killed_the_process_runs_on(counter):
    code = (
        "import sys, time\n"
        "from fabwatch.watchdog.agent.hold import Holder\n"
        f"h = Holder(); h.hold({counter.pid}, 3.0)\n"
        "while not h.answers(): time.sleep(0.001)\n"
        "print(h.pid, flush=True); time.sleep(60)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    holding = int(owner.stdout.readline())
    before = counter.read()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert wait_for(lambda: counter.read()[0] > before[0] + 3)
    assert wait_for(lambda: not running(holding)), "the holding process stayed behind"


def running(pid):
    try:
        with Path(f"/proc/{pid}/stat").open() as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_held_process_can_still_be_killed(holder, counter):
    holder.hold(counter.pid)
    answer(holder, "held")
    counter.kill()
    assert counter.wait(20) == -signal.SIGKILL
    answer(holder, "ended")


def test_a_process_that_is_traced_already_is_refused_with_a_reason(holder, counter):
    other = Holder()
    try:
        other.hold(counter.pid)
        answer(other, "held")
        holder.hold(counter.pid)
        (refusal,) = [a for a in answer(holder, "refused") if a.what == "refused"]
        assert "traced" in refusal.reason
    finally:
        other.release()
        other.close()
    assert wait_for(lambda: counter.poll() is None and counter.read()[0])


def test_a_process_that_is_gone_is_refused(holder):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    holder.hold(gone.pid)
    (refusal,) = [a for a in answer(holder, "refused") if a.what == "refused"]
    assert "ended" in refusal.reason


def test_it_can_hold_again_and_again(holder, counter):
    for _ in range(5):
        holder.hold(counter.pid)
        answer(holder, "held")
        holder.release()
        answer(holder, "released")
    before = counter.read()
    assert wait_for(lambda: counter.read()[0] > before[0])


def test_closing_leaves_no_process(counter):
    one = Holder()
    one.hold(counter.pid)
    answer(one, "held")
    one.close()
    assert not running(one.pid)
    before = counter.read()
    assert wait_for(lambda: counter.read()[0] > before[0])
    with contextlib.suppress(ChildProcessError):
        os.waitpid(one.pid, os.WNOHANG)
