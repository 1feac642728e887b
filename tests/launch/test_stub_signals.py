"""A signal reaches the job exactly once, whoever was meant by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

COUNTS = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(number)
    os.write(1, b"got %d\\n" % number)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGWINCH,
               signal.SIGRTMIN + 3):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while signal.SIGUSR1 not in seen:
    time.sleep(0.01)
os.write(1, b"bye\\n")
"""


def counting(launches, **kw):
    """A job that prints what it gets and ends at SIGUSR1. A stub takes USR1 after TERM and INT."""
    proc = launches.start([sys.executable, "-c", COUNTS], **kw)
    assert proc.stdout.readline() == b"ready\n"
    return proc


def job_of(launches) -> int:
    """The pid of the counting job."""
    found = [p for p, w in launches.left().items() if "got %d" in w and "drive.py" not in w]
    assert len(found) == 1
    return found[0]


def rest(proc) -> list[bytes]:
    """End the job through its stub and return what else it printed."""
    os.kill(proc.pid, signal.SIGUSR1)
    out, _ = proc.communicate(timeout=60)
    assert proc.returncode == 0
    return out.split(b"\n")[:-1]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGRTMIN + 3]
)
def test_a_signal_to_the_stub_alone_is_forwarded_once(launches, number):
    proc = counting(launches)
    os.kill(proc.pid, number)
    assert proc.stdout.readline() == b"got %d\n" % number
    assert rest(proc) == [b"got 10", b"bye"]


def test_a_signal_to_the_whole_group_arrives_in_the_job_once(launches):
    proc = counting(launches)
    for _ in range(3):
        os.killpg(proc.pid, signal.SIGTERM)
        assert proc.stdout.readline() == b"got 15\n"
        time.sleep(0.1)  # else two of them are one pending signal
    # ... and one to the stub alone right after it is not mistaken for a fourth.
    os.kill(proc.pid, signal.SIGTERM)
    assert proc.stdout.readline() == b"got 15\n"
    assert rest(proc) == [b"got 10", b"bye"]


def test_without_a_witness_a_signal_to_the_group_is_not_lost(launches):
    """No `cat` on PATH, so nobody in the group can tell: it may come twice, never not at all."""
    proc = counting(launches, env=launches.environ(PATH=str(launches.folder)))
    os.killpg(proc.pid, signal.SIGTERM)
    assert proc.stdout.readline() == b"got 15\n"
    assert set(rest(proc)) <= {b"got 15", b"got 10", b"bye"}


def test_a_signal_that_the_job_sends_to_its_parent_does_not_come_back(launches):
    job = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *a: os.write(1, b'mine\\n'))\n"
        "os.kill(os.getppid(), signal.SIGTERM); time.sleep(0.5)"
    )
    assert launches.run([sys.executable, "-c", job])[:2] == (0, b"")


def test_sigterm_to_the_stub_ends_an_unsuspecting_job_by_sigterm(launches):
    proc = launches.start(["sleep", "600"])
    launches.agent_pid()
    proc.terminate()
    proc.communicate(timeout=60)
    assert proc.returncode == -signal.SIGTERM


def test_a_signal_that_comes_before_the_job_is_not_lost(launches):
    """Blocked and pending from before the exec: it must reach the job once that exists."""
    before = (
        "import os, signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    job = [sys.executable, "-c", "import signal; print(signal.sigwait({signal.SIGTERM}))"]
    got = subprocess.run(
        [sys.executable, "-c", before, *launches.argv(job)],
        env=launches.environ(),
        capture_output=True,
        timeout=60,
        cwd=launches.folder,
    )
    assert got.returncode == 0, got.stderr
    assert got.stdout.split() in ([b"15"], [b"Signals.SIGTERM"])


def test_an_alarm_that_was_set_before_the_exec_rings_in_the_job(launches):
    """`perl -e 'alarm 1; exec @ARGV'`: alarms survive exec, and belong to the command."""
    before = "import os, signal, sys; signal.alarm(2); os.execv(sys.argv[1], sys.argv[1:])"
    got = subprocess.run(
        [sys.executable, "-c", before, *launches.argv(["sleep", "600"])],
        env=launches.environ(),
        capture_output=True,
        timeout=60,
        cwd=launches.folder,
    )
    assert got.returncode == -signal.SIGALRM


def test_sigkill_of_the_stub_leaves_the_job_running(launches):
    proc = launches.start([sys.executable, "-c", COUNTS])
    assert proc.stdout.readline() == b"ready\n"
    launches.agent_pid()
    job = job_of(launches)
    proc.kill()
    proc.wait(30)
    os.kill(job, signal.SIGUSR1)
    assert b"bye" in proc.communicate(timeout=30)[0]


def test_a_job_stopped_and_continued_by_its_own_pid_ends_under_a_stub_that_follows(launches):
    """The stub stops as the job does, and must not sleep on when only the job is continued."""
    proc = counting(launches)
    job = job_of(launches)
    os.kill(job, signal.SIGSTOP)
    _, status = os.waitpid(proc.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    os.kill(job, signal.SIGCONT)
    assert rest(proc) == [b"got 10", b"bye"]


def test_sigcont_to_a_stopped_stub_continues_the_job(launches):
    proc = counting(launches)
    os.kill(proc.pid, signal.SIGTSTP)
    _, status = os.waitpid(proc.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGTSTP
    os.kill(proc.pid, signal.SIGCONT)
    assert rest(proc) == [b"got 10", b"bye"]
