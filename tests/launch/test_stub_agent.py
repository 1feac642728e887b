"""Whatever happens to the agent, the job does not notice."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from fabwatch.watchdog.launch.agent_link import agent_command

PY = sys.executable


def test_the_agent_hears_of_the_job_from_its_pid_to_its_end(launches):
    code, out, _ = launches.run(["sh", "-c", "echo $$; exit 6"], notify="page --token=abc123 me")
    heard = [json.loads(t) for t in (launches.run_dir() / "heard").read_text().splitlines()]
    assert heard == [
        {"options": {"notify": "page --token=abc123 me"}},
        {"job_pid": int(out)},
        {"job_ended": {"code": 6}},
    ]
    assert code == 6


def test_the_agent_hears_of_a_death_by_signal(launches):
    launches.run(["sh", "-c", "kill -9 $$"])
    assert json.loads((launches.run_dir() / "heard").read_text().splitlines()[-1]) == {
        "job_ended": {"signal": 9}
    }


def test_the_agent_is_apart_from_the_job(launches):
    """Own session, no variable armed, nothing blocked or ignored, no stream of the job's."""
    proc = launches.start([PY, "-c", "input()"], popen={"stdin": -1})
    agent = launches.agent_pid()
    assert os.getsid(agent) == agent
    with open(f"/proc/{agent}/environ", "rb") as file:  # noqa: PTH123
        environ = file.read()
    assert launches.tag.encode() in environ
    assert b"FABWATCH_RUN_DIR" not in environ
    assert b"NCCL" not in environ
    with open(f"/proc/{agent}/status") as file:  # noqa: PTH123
        fields = dict(line.split(":", 1) for line in file)
    assert int(fields["SigBlk"], 16) == 0
    assert int(fields["SigIgn"], 16) & ~(3 << 31) == 1 << 12 | 1 << 24  # its Python's own two
    streams = [str(Path(f"/proc/{agent}/fd/{n}").readlink()) for n in range(3)]
    assert streams[0] == "/dev/null"
    assert streams[1] == streams[2] == str(launches.run_dir() / "agent.log")
    proc.communicate(b"\n", timeout=60)
    assert proc.returncode == 0


@pytest.mark.parametrize("mode", ["missing", "dies"])
def test_an_agent_that_is_missing_or_dies_at_once_costs_a_warning_only(launches, mode):
    code, out, err = launches.run(["sh", "-c", "sleep 0.5; echo out; exit 3"], mode)
    assert (code, out) == (3, b"out\n")
    assert b"fabwatch: the agent" in err


def test_with_quiet_a_missing_agent_costs_nothing_at_all(launches):
    assert launches.run(["sh", "-c", "exit 3"], "missing", quiet=True) == (3, b"", b"")


def test_the_job_starts_without_waiting_for_the_agent(launches):
    """The agent stops before it does anything; the job runs to its end all the same."""
    fifo = launches.folder / "fifo"
    os.mkfifo(fifo)
    launches.agent.write_text(f"open({str(fifo)!r}).read()\n" + launches.agent.read_text())
    mark = launches.folder / "mark"
    proc = launches.start(["touch", str(mark)])
    end = time.monotonic() + 30
    while not mark.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert proc.poll() is None  # it waits for the capture now, within --grace
    fifo.write_text("go")
    assert proc.wait(60) == 0
    proc.communicate()


@pytest.mark.parametrize("seed", range(4))
def test_sigkill_of_the_agent_at_a_random_moment_changes_nothing(launches, seed):
    job = (
        "import sys, time\nfor i in range(20): print(i, flush=True); time.sleep(0.05)\nsys.exit(8)"
    )
    proc = launches.start([PY, "-c", job], mode="talks")
    agent = launches.agent_pid()
    time.sleep(random.Random(seed).uniform(0, 0.8))
    os.kill(agent, signal.SIGKILL)
    out, err = proc.communicate(timeout=60)
    assert proc.returncode == 8
    assert out == b"".join(b"%d\n" % i for i in range(20))
    assert b"the agent ended before the job did (signal 9)" in err


def test_a_deaf_agent_and_its_children_are_ended_after_grace(launches):
    """It ignores SIGTERM and reads nothing; the stub neither waits for ever nor leaves it."""
    code, _, err = launches.run(["sh", "-c", "exit 5"], mode="deaf", grace=0.5)
    assert code == 5
    assert b"cut short" in err
    assert str(launches.run_dir()).encode() in err


def test_an_agent_that_talks_nonsense_is_read_as_far_as_it_makes_sense(launches):
    code, _, err = launches.run(["true"], mode="garbage")
    assert code == 0
    assert err.splitlines() == [b"fabwatch: ? odd", b"fabwatch: all is well"]


def test_a_flood_from_the_agent_ends_in_its_line_being_cut(launches):
    flood = 'while mode == "flood":\n    sock.sendall(b"x" * 65536)\n'
    text = launches.agent.read_text()
    launches.agent.write_text(text.replace("for text in line:", flood + "for text in line:"))
    code, out, _ = launches.run(["sh", "-c", "sleep 0.3; echo fine"], mode="flood", grace=5)
    assert (code, out) == (0, b"fine\n")


def test_the_real_agents_command_is_python_with_the_module(monkeypatch):
    words = agent_command()
    assert words[0] == sys.executable
    assert words[-2:] == ["-m", "fabwatch.watchdog.agent"]
    if sys.version_info >= (3, 11):
        assert "-P" in words  # a json.py in the job's directory is not the agent's
