"""A broken pipe of the stub's own is never the job's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CHILD = """
import json, os, signal, sys
from fabwatch.watchdog.launch.agent_link import AgentLink
from fabwatch.watchdog.launch.signals import Forwarding, Witness

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
log = os.open(os.devnull, os.O_WRONLY)
link = AgentLink([sys.executable, "-c", "pass"], "run", log, dict(os.environ))
os.waitpid(link.pid, 0)
for _ in range(3):
    link.send({"job_pid": 1})
by_link = signal.SIGPIPE in signal.sigpending()

read, write = os.pipe()
os.close(read)
try:
    os.write(write, b"x")
except BrokenPipeError:
    pass
info = signal.sigtimedwait({signal.SIGPIPE}, 5)


class Nobody:
    def saw(self, number):
        return False


forwarding = Forwarding(os.getppid(), {signal.SIGPIPE, signal.SIGTERM}, Nobody())
own = forwarding.wanted(info)
os.kill(os.getpid(), signal.SIGTERM)
early = forwarding.wanted(signal.sigtimedwait({signal.SIGTERM}, 5))
print(json.dumps({"by_link": by_link, "raised": info is not None, "own": own, "early": early}))
"""


@pytest.fixture(scope="module")
def told():
    done = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, timeout=60, check=True
    )
    return json.loads(done.stdout)


def test_talking_to_an_agent_that_is_gone_raises_no_signal(told) -> None:
    assert told["by_link"] is False


def test_a_broken_pipe_of_the_stubs_own_is_not_passed_on(told) -> None:
    assert told["raised"] and told["own"] is False


def test_a_signal_that_came_before_there_was_a_job_is_passed_on(told) -> None:
    assert told["early"] is True
