"""At a terminal the stub is invisible: Ctrl-C once, Ctrl-Z and fg as a shell expects."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import sys
import time

import pytest

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="bash, a shell with job control, is missing")

JOB = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(number)
    print("got", signal.Signals(number).name, flush=True)
for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, note)
print("job", os.getpid(), "is", "ready", flush=True)
while signal.SIGUSR1 not in seen and signal.SIGHUP not in seen:
    time.sleep(0.01)
print("bye with", len(seen), "signals", flush=True)
sys.exit(42)
"""


class Terminal:
    """A process on a pseudo-terminal of its own."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
                signal.signal(
                    number, signal.SIG_DFL
                )  # a test runner in the background ignores some
            os.execve(argv[0], argv, env)

    def expect(self, words: str, deadline_s: float = 30.0) -> str:
        """Read until ``words`` come; return what came before them."""
        want = words.encode()
        end = time.monotonic() + deadline_s
        while want not in self.text:
            left = end - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            data = b""
            if ready:
                try:
                    data = os.read(self.fd, 65536)
                except OSError:  # the other side is closed
                    data = b""
            assert data, f"no {words!r} in {self.text!r}"
            self.text += data
        before, _, self.text = self.text.partition(want)
        return before.decode(errors="replace")

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait(self) -> int:
        end = time.monotonic() + 30
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if select.select([self.fd], [], [], 0.01)[0]:
                try:
                    self.text += os.read(self.fd, 65536)
                except OSError:
                    time.sleep(0.01)
        raise AssertionError(f"{self.pid} does not end: {self.text!r}")


def shell(launches) -> Terminal:
    """An interactive bash without anybody's start-up files."""
    assert BASH
    env = launches.environ(PS1="$ ", PS2="", HISTFILE="/dev/null", TERM="dumb")
    term = Terminal([BASH, "--norc", "--noprofile", "--noediting", "-i"], env)
    term.type("stty -echo; echo shell-$((1+1))\n")
    term.expect("shell-2")
    return term


def command(launches, mode: str = "polite") -> str:
    script = launches.folder / "job.py"
    script.write_text(JOB)
    return shlex.join(launches.argv([sys.executable, str(script)], mode))


def started(term: Terminal) -> int:
    term.expect("job ")
    return int(term.expect(" is ready"))


def leave(term: Terminal) -> None:
    term.type("exit\n")
    term.wait()
    os.close(term.fd)


@needs_bash
def test_ctrl_c_reaches_the_job_once_and_the_exit_code_the_shell(launches):
    term = shell(launches)
    term.type(f"{command(launches)}; echo code-$?\n")
    job = started(term)
    term.type("\x03")
    term.expect("got SIGINT")
    # A second SIGINT would be forwarded before a later signal of a higher number.
    os.kill(parent_of(job), signal.SIGUSR1)
    term.expect("got SIGUSR1")
    term.expect("bye with 2 signals")
    term.expect("code-42")
    leave(term)


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return int(file.read().rpartition(")")[2].split()[1])


@needs_bash
def test_ctrl_c_kills_an_unsuspecting_job_and_the_shell_sees_a_death_by_sigint(launches):
    term = shell(launches)
    line = shlex.join(launches.argv(["sh", "-c", "echo up-$((1+1)); exec sleep 600"]))
    term.type(f"{line}\n")
    term.expect("up-2")
    term.type("\x03")
    term.expect("all is well")  # the Ctrl-C that ended the job does not skip the capture
    term.type("echo code-$?\n")
    term.expect("code-130")
    leave(term)


@needs_bash
def test_ctrl_z_stops_job_and_stub_and_fg_continues_both(launches):
    term = shell(launches)
    term.type(f"{command(launches)}\n")
    job = started(term)
    for _ in range(2):
        term.type("\x1a")
        term.expect("Stopped")
        assert state(job) == "T"
        term.type("echo code-$?\n")
        term.expect("code-148")  # 128 + SIGTSTP, as for any command
        term.type("fg\n")
        until_running(job)
    term.type("\x03")
    term.expect("got SIGINT")
    os.kill(parent_of(job), signal.SIGUSR1)
    term.expect("bye with 2 signals")
    term.type("echo code-$?\n")
    term.expect("code-42")
    leave(term)


@needs_bash
def test_bg_continues_it_in_the_background_and_a_read_stops_it_again(launches):
    """SIGTTIN: a background job that reads the terminal stops, and the shell hears of it."""
    term = shell(launches)
    line = shlex.join(launches.argv(["sh", "-c", "echo up-$((1+1)); read x; echo had-$x; exit 3"]))
    term.type(f"{line} &\n")
    term.expect("up-2")
    term.type("while ! jobs | grep -q Stopped; do sleep 0.1; done; echo it-$((1+1))\n")
    term.expect("it-2")
    term.type("fg; echo code-$?\n")
    time.sleep(0.2)
    term.type("word\n")
    term.expect("had-word")
    term.expect("code-3")
    leave(term)


def state(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0]


def until_running(pid: int) -> None:
    end = time.monotonic() + 30
    while state(pid) in "Tt":
        assert time.monotonic() < end, "the job stays stopped"
        time.sleep(0.01)


def test_a_lost_terminal_hangs_up_the_job_of_a_session_leader_once(launches):
    """`docker run -t` and `ssh -t host fabwatch ...`: the kernel tells the stub alone."""
    script = launches.folder / "job.py"
    script.write_text(JOB.replace("print(", "(lambda *a, **k: note_down(a))("))
    log = launches.folder / "log"
    script.write_text(
        f"def note_down(words):\n    with open({str(log)!r}, 'a') as f: print(*words, file=f)\n"
        + script.read_text()
    )
    term = Terminal(launches.argv([sys.executable, str(script)]), launches.environ())
    end = time.monotonic() + 30
    while not (log.exists() and "ready" in log.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.close(term.fd)
    _, status = os.waitpid(term.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 42
    assert log.read_text().count("SIGHUP") == 1


@needs_bash
def test_ctrl_c_while_waiting_for_a_capture_ends_the_wait_with_the_jobs_code(launches):
    term = shell(launches)
    script = launches.folder / "short.py"
    script.write_text("print('short', 'job', flush=True); raise SystemExit(7)")
    argv = launches.argv([sys.executable, str(script)], "slow", grace=600)
    term.type(f"{shlex.join(argv)}; echo code-$?\n")
    term.expect("short job")
    heard = launches.run_dir() / "heard"
    end = time.monotonic() + 30
    while not (heard.exists() and "job_ended" in heard.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.5)  # a Ctrl-C within a moment of the job's end counts as the job's
    term.type("\x03")
    term.expect("not waiting for the capture")
    term.expect("code-")
    leave(term)
