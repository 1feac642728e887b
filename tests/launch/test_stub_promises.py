"""The job's streams, exit and surroundings are what they would have been without a stub."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PY = sys.executable


@pytest.mark.parametrize("code", [0, 1, 2, 77, 126, 127, 128, 130, 137, 255])
def test_the_exit_code_is_the_jobs(launches, code):
    assert launches.run(["sh", "-c", f"exit {code}"])[0] == code


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGINT", "SIGPIPE"])
def test_a_parent_sees_the_same_signal(launches, name):
    number = getattr(signal, name)
    code, _, _ = launches.run(
        [PY, "-c", f"import os, signal; signal.signal({int(number)}, signal.SIG_DFL) "
         f"if {int(number)} != 9 else 0; os.kill(os.getpid(), {int(number)})"]
    )  # fmt: skip
    assert code == -number
    assert launches.launch_json()["outcome"] == {"signal": int(number)}


def test_the_stub_dumps_no_core_of_its_own_beside_the_jobs(launches):
    def allow_cores() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    def status_of(argv: list[str]) -> int:
        proc = subprocess.Popen(
            argv, preexec_fn=allow_cores, cwd=launches.folder, env=launches.environ()
        )
        status = os.waitpid(proc.pid, 0)[1]
        proc.returncode = 0  # reaped here, for the bit that Popen drops
        return status

    job = ["sh", "-c", "kill -SEGV $$"]
    alone = status_of(job)
    assert os.WTERMSIG(alone) == signal.SIGSEGV
    if not os.WCOREDUMP(alone):
        pytest.skip("no core is dumped here at all")
    wrapped = status_of(launches.argv(job, quiet=True))
    assert os.WTERMSIG(wrapped) == signal.SIGSEGV
    assert not os.WCOREDUMP(wrapped)


def test_stdout_is_byte_identical_also_when_large_and_binary(launches):
    job = (
        "import sys; b = bytes(range(256)) * 4096; [sys.stdout.buffer.write(b) for _ in range(40)]"
    )
    code, out, _ = launches.run([PY, "-c", job], mode="talks")
    assert code == 0
    want = hashlib.sha256(bytes(range(256)) * 4096 * 40).hexdigest()
    assert hashlib.sha256(out).hexdigest() == want


def test_stdin_reaches_the_job(launches):
    data = os.urandom(300_000)
    assert launches.run(["cat"], data=data)[1] == data


def test_stderr_holds_the_jobs_lines_and_prefixed_ones_only(launches):
    _, _, err = launches.run(["sh", "-c", "echo mine >&2"], mode="talks")
    lines = err.decode().splitlines()
    assert "mine" in lines
    others = [line for line in lines if line != "mine"]
    assert others == [
        "fabwatch: one rank stands still",
        "fabwatch: it is rank 1",
        "fabwatch: all is well",
    ]


def test_quiet_adds_nothing_to_stderr(launches):
    _, _, err = launches.run(["sh", "-c", "echo mine >&2"], mode="talks", quiet=True)
    assert err == b"mine\n"


def test_the_job_keeps_directory_group_session_and_environment(launches):
    """All of it but the variables that are armed; LC_CTYPE, which Python adds, is not one."""
    show = (
        "import json, os; print(json.dumps([os.getcwd(), os.getpgrp() == os.getpgid(os.getppid()),"
        "os.getsid(0), open('/proc/self/environ').read().split(chr(0))]))"
    )
    env = {"PATH": os.environ["PATH"], "LANG": "C", "ODD": "a=b\nc", launches.tag: "1"}
    code, out, err = launches.run([PY, "-c", show], env=env)
    assert code == 0, err
    cwd, same_group, session, raw = json.loads(out)
    assert cwd == str(launches.folder)
    assert same_group
    assert session == os.getsid(0)
    got = dict(item.split("=", 1) for item in raw if item)
    armed = {line["name"] for line in launches.launch_json()["armed"] if line["armed"]}
    assert {k: v for k, v in got.items() if k not in armed} == env


def test_a_descriptor_handed_down_reaches_the_job_and_nobody_else(launches):
    """A reader of the job's own pipe sees its end when the job ends, not when the agent does."""
    read, write = os.pipe()
    proc = launches.start(
        [PY, "-c", f"import os; os.write({write}, b'through\\n')"],
        mode="slow",
        grace=60,
        popen={"pass_fds": (write,)},
    )
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.readline() == b"through\n"
        # Only the stub may still hold it. When it goes, so must the last writer.
        proc.send_signal(signal.SIGKILL)
        assert pipe.read() == b""
    proc.communicate(timeout=30)
    os.kill(launches.agent_pid(), signal.SIGKILL)


def test_a_missing_command_is_named_and_ends_with_127(launches):
    code, out, err = launches.run(["no-such-launcher", "x"], quiet=True)
    assert (code, out) == (127, b"")
    assert err == b"fabwatch: no-such-launcher: command not found\n"
    assert list(launches.out.iterdir()) == []  # nothing ran, so there is no run


def test_a_command_that_cannot_be_executed_ends_with_126(launches):
    plain = launches.folder / "plain.txt"
    plain.write_text("no program\n")
    plain.chmod(0o600)
    code, _, err = launches.run([str(plain)])
    assert code == 126
    assert b"plain.txt: cannot be run: Permission denied" in err
    lost = launches.folder / "lost"
    lost.write_text("#!/no/such/interpreter\n")
    lost.chmod(0o700)
    code, _, err = launches.run([str(lost)])
    assert code == 126
    assert b"interpreter" in err


def test_a_script_without_an_interpreter_line_runs_as_in_a_shell(launches):
    script = launches.folder / "bare"
    script.write_text("echo bare $1\n")
    script.chmod(0o700)
    assert launches.run([str(script), "x"])[:2] == (0, b"bare x\n")


@pytest.mark.parametrize("stream", ["2>&-", "2>/dev/full", "0<&-", "0<&- 1>&- 2>&-"])
def test_closed_and_broken_streams_do_no_harm(launches, stream):
    mark = launches.folder / "ran"
    line = " ".join(
        "'" + w.replace("'", "'\\''") + "'"
        for w in launches.argv(["sh", "-c", f"touch {mark}; exit 5"], mode="talks")
    )
    got = subprocess.run(["sh", "-c", f"{line} {stream}"], env=launches.environ(), timeout=60)
    assert got.returncode == 5
    assert mark.exists()
    heard = (launches.run_dir() / "heard").read_text()
    assert "fabwatch:" not in heard + (launches.run_dir() / "agent.log").read_text()


def test_a_reader_of_stderr_that_goes_away_does_no_harm(launches):
    proc = launches.start(["sh", "-c", "read x; exit 4"], mode="talks", popen={"stdin": -1})
    proc.stderr.close()
    proc.communicate(b"go\n", timeout=60)
    assert proc.returncode == 4


def test_stderr_that_nobody_reads_delays_the_end_by_its_patience_only(launches):
    """A full pipe: the lines are dropped, the exit code arrives."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while True:
            os.write(write, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(write, True)
    proc = launches.start(["true"], mode="talks", popen={"stderr": write})
    proc.communicate(timeout=60)
    assert proc.returncode == 0
    os.close(read)
    os.close(write)


def test_what_the_parent_ignored_stays_ignored_and_pythons_own_do_not(launches):
    """nohup's SIGHUP and a background job's SIGINT; SIGPIPE and SIGXFSZ are Python's doing."""

    def ignore() -> None:
        for number in (signal.SIGQUIT, signal.SIGTERM, signal.SIGTSTP, signal.SIGTTOU):
            signal.signal(number, signal.SIG_DFL)  # whatever the test runner's own parent ignored
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    _, out, _ = launches.run(["cat", "/proc/self/status"], popen={"preexec_fn": ignore})
    fields = dict(line.split(":", 1) for line in out.decode().splitlines())
    bits = {n for n in range(1, 65) if int(fields["SigIgn"], 16) >> (n - 1) & 1}
    own_to_libc = {32, 33}  # glibc's posix_spawn leaves these two ignored; nobody may use them
    assert bits - own_to_libc == {signal.SIGHUP, signal.SIGINT}
    assert int(fields["SigBlk"], 16) == 1 << (signal.SIGUSR2 - 1)


def test_an_ignored_sigchld_neither_loses_the_exit_code_nor_is_it_hidden_from_the_job(launches):
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    job = [PY, "-c", "print(open('/proc/self/status').read()); raise SystemExit(9)"]
    code, out, _ = launches.run(job, popen={"preexec_fn": ignore})
    assert code == 9
    fields = dict(line.split(":", 1) for line in out.decode().splitlines() if ":" in line)
    assert int(fields["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1


def test_as_the_first_process_of_a_container_it_ends_with_128_plus_the_signal(launches):
    """Such a process cannot kill itself; and it reaps orphans as an init must."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no process namespace can be made here")
    job = "(sleep 0.2 &) ; sleep 0.5; cat /proc/[0-9]*/stat | grep -c ') Z '; kill -9 $$"
    got = subprocess.run(
        [*unshare, *launches.argv(["sh", "-c", job])],
        env=launches.environ(),
        capture_output=True,
        timeout=60,
        cwd=launches.folder,
    )
    assert got.returncode == 128 + 9
    assert got.stdout == b"0\n"


def test_the_stub_works_with_a_thousand_descriptors_open(launches):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1400:
        pytest.skip(f"only {hard} descriptors are allowed")

    def before() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1400), hard))
        for _ in range(1100):
            os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)

    job = ["sh", "-c", "ls /proc/self/fd | wc -l"]
    code, out, err = launches.run(job, popen={"preexec_fn": before, "close_fds": False})
    assert code == 0
    assert int(out) > 1100
    assert err == b"fabwatch: all is well\n"


def test_a_descriptor_above_a_low_limit_reaches_the_job_and_the_agent_starts(launches):
    """It is older than the limit; the C library refuses to name it to a child."""

    def before() -> None:
        os.dup2(os.open("/dev/null", os.O_RDONLY), 200, inheritable=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    job = ["sh", "-c", "readlink /proc/self/fd/200; ulimit -n"]
    code, out, err = launches.run(job, popen={"preexec_fn": before, "close_fds": False})
    assert (code, out) == (0, b"/dev/null\n64\n")
    assert err == b"fabwatch: all is well\n", "it was watched"


def test_where_descriptors_do_not_suffice_it_is_said_what_to_do(launches):
    """Filled up before the stub starts, so that only its own few are left to be had."""
    launches.drive.write_text(
        "import os, resource\n"
        + launches.drive.read_text().replace(
            "options, agent =",
            "resource.setrlimit(resource.RLIMIT_NOFILE, (6, 6))\noptions, agent =",
            1,
        )
    )
    code, out, err = launches.run(["sh", "-c", "echo ran; exit 3"])
    assert (code, out) == (3, b"ran\n")
    assert b"the limit of open files is 6" in err
    assert b"ulimit -n 4096" in err
    assert b"the job runs unwatched" in err


def test_the_stub_spends_next_to_no_cpu_while_the_job_runs(launches):
    """It waits in the kernel: over two seconds not one more clock tick than a few."""
    proc = launches.start(["sleep", "60"])
    pid = launches.agent_pid() and proc.pid

    def ticks() -> int:
        return sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        )

    time.sleep(0.5)
    before = ticks()
    time.sleep(2.0)
    assert ticks() - before <= 2
    proc.terminate()
    assert proc.wait(30) == -signal.SIGTERM
    proc.communicate()
