"""A launch in a process of its own, with an agent that the test wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DRIVE = """
import json, sys
from fabwatch.watchdog.launch.options import LaunchOptions
from fabwatch.watchdog.launch.stub import launch
options, agent = json.loads(sys.argv[1]), json.loads(sys.argv[2])
sys.exit(launch(sys.argv[3:], LaunchOptions(**options), agent=agent))
"""

AGENT = """
import json, os, signal, socket, subprocess, sys, time
mode = sys.argv[1]
run_dir, fd = sys.argv[2], int(sys.argv[3])
sock = socket.socket(fileno=fd)
line = sock.makefile("r")
def send(**message):
    sock.sendall(json.dumps(message).encode() + b"\\n")
with open(os.path.join(run_dir, "agent.pid"), "w") as file:
    file.write(str(os.getpid()))
    file.flush()
os.rename(os.path.join(run_dir, "agent.pid"), os.path.join(run_dir, "pid"))
if mode == "dies":
    sys.exit(3)
if mode == "garbage":
    sock.sendall(b"\\xff\\xfe{not json\\n[1]\\n{\\"say\\": 7}\\n" * 50)
    sock.sendall(b"{\\"say\\": \\"\\\\ud800 odd\\"}\\n")
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    time.sleep(600)
for text in line:
    with open(os.path.join(run_dir, "heard"), "a") as file:
        file.write(text)
    message = json.loads(text)
    if "job_pid" in message and mode == "talks":
        send(say="one rank stands still\\nit is rank 1")
    if "job_ended" in message:
        if mode == "slow":
            time.sleep(600)
        send(say="all is well")
        send(done=True)
        break
"""


def until(what: Callable[[], Any], deadline_s: float = 30.0, why: str = "") -> Any:
    """Poll ``what`` until it is true, and return it; fail after ``deadline_s``."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        got = what()
        if got:
            return got
        time.sleep(0.01)
    raise AssertionError(f"not within {deadline_s} s: {why or what}")


class Launches:
    """Starts wrapped jobs and knows every process that came of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "runs"
        self.tag = f"FABWATCH_TEST_TAG_{uuid.uuid4().hex}"
        self.drive = folder / "drive.py"
        self.drive.write_text(DRIVE)
        self.agent = folder / "fake_agent.py"
        self.agent.write_text(AGENT)

    def environ(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FABWATCH", "NCCL"))}
        return {**kept, self.tag: "1", **more}

    def argv(self, job: list[str], mode: str = "polite", **options: Any) -> list[str]:
        """The command line of a stub around ``job``."""
        agent = [sys.executable, str(self.agent), mode]
        if mode == "missing":
            agent = [str(self.folder / "no-such-agent")]
        options = {"out": str(self.out), **options}
        return [sys.executable, str(self.drive), json.dumps(options), json.dumps(agent), *job]

    def start(
        self,
        job: list[str],
        mode: str = "polite",
        popen: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start one, in a process group of its own, as a shell with job control would."""
        how: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "process_group": 0,
        }
        if sys.version_info < (3, 11):
            del how["process_group"]
            how["preexec_fn"] = os.setpgrp
        how.update(popen or {})
        return subprocess.Popen(
            self.argv(job, mode, **options), env=env or self.environ(), cwd=self.folder, **how
        )

    def run(self, job: list[str], mode: str = "polite", **kw: Any) -> tuple[int, bytes, bytes]:
        """Start one and wait; (code or minus signal, stdout, stderr)."""
        data = kw.pop("data", None)
        if data is not None:
            kw["popen"] = {"stdin": subprocess.PIPE, **kw.get("popen", {})}
        proc = self.start(job, mode, **kw)
        out, err = proc.communicate(data, timeout=60)
        return proc.returncode, out or b"", err or b""

    def run_dir(self) -> Path:
        """The one run that was made."""
        return until(lambda: self.out.is_dir() and next(self.out.iterdir(), None), why="a run")

    def launch_json(self) -> dict[str, Any]:
        return json.loads((self.run_dir() / "launch.json").read_text())

    def agent_pid(self) -> int:
        file = self.run_dir() / "pid"
        until(file.exists, why="the fake agent's pid file")
        return int(file.read_text())

    def left(self) -> dict[int, str]:
        """Processes of these launches that live, by what they run."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if self.tag.encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
        return found


@pytest.fixture
def launches(tmp_path: Path) -> Iterator[Launches]:
    """Launches in a folder of their own; afterwards no process of theirs may live."""
    made = Launches(tmp_path)
    yield made
    for file in tmp_path.glob("runs/*/launch.json"):  # of a stub that a test killed
        with contextlib.suppress(OSError, ValueError, KeyError):
            shutil.rmtree(json.loads(file.read_text())["sockets"], ignore_errors=True)
    try:
        until(lambda: not made.left(), 10, "every process of the launch to end")
    except AssertionError:
        left = made.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        raise AssertionError(f"left behind: {left}") from None
