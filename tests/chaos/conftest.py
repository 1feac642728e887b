"""Targets for faults: processes and folders that a test made, and an injector in a child."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fabwatch.chaos.journal import Store
from fabwatch.chaos.model import Victim

VICTIM = """
import os, sys, threading, time
def count():
    while True:
        sum(range(2000)); time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()
grown = []
with open(sys.argv[1], "w") as out:
    tick = 0
    while True:
        tick += 1
        out.seek(0); out.write(f"{tick}\\n"); out.flush()
        if len(grown) < 256:
            grown.append(bytearray(os.urandom(4096)) * 16)
        sum(range(20000)); time.sleep(0.002)
"""
"""A process with a second thread, that works, allocates a few MiB and counts in a file."""


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A journal folder of this test's own."""
    made = Store(tmp_path / "journals").ready()
    monkeypatch.setenv("FABWATCH_CHAOS_STATE", str(made.folder))
    return made


@pytest.fixture
def me():
    """The host pattern that allows faults here."""
    return [socket.gethostname()]


@dataclass
class Sacrifice:
    """The victim, and how far it has counted."""

    child: subprocess.Popen
    file: Path

    @property
    def victim(self):
        return Victim.of(self.child.pid, 1)

    def ticks(self):
        try:
            return int(self.file.read_text().split()[0])
        except (OSError, IndexError, ValueError):
            return 0

    def moves(self, seconds=10.0):
        """Whether it counts on."""
        before, until = self.ticks(), time.monotonic() + seconds
        while self.ticks() == before:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True


@pytest.fixture
def sacrifice(tmp_path):
    """A living victim; killed at the end, stopped or not."""
    file = tmp_path / "ticks"
    child = subprocess.Popen([sys.executable, "-c", VICTIM, str(file)], stderr=subprocess.DEVNULL)
    made = Sacrifice(child, file)
    assert made.moves(30)
    yield made
    child.send_signal(signal.SIGKILL)
    child.wait()


@dataclass
class Injector:
    """An injector in a child process."""

    child: subprocess.Popen
    id: str
    guardian: int
    held: bool | None

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def end(self):
        """Let it heal and end; what it printed last."""
        out, err = self.child.communicate("\n", timeout=60)
        assert self.child.returncode == 0, err
        return json.loads(out)


@pytest.fixture
def inject_in_child(store):
    """A function that starts an injector of a plan's parts and waits until it is in force."""
    children = []

    def start(fault, mechanism, target, options, limit_s=30.0, beside=()):
        ask = {
            "fault": fault, "mechanism": mechanism, "target": target.as_json(),
            "options": options, "limit_s": limit_s, "store": str(store.folder),
            "beside": list(beside),
        }  # fmt: skip
        child = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("chaos_injector.py")), json.dumps(ask)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        line = child.stdout.readline()
        if not line:
            pytest.fail(child.communicate(timeout=10)[1])
        told = json.loads(line)
        return Injector(child, told["id"], told["guardian"], told["held"])

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()


@pytest.fixture
def closed(store):
    """A function that waits until a journal says that its fault is gone."""

    def wait(name, seconds=20.0):
        until = time.monotonic() + seconds
        while any(record.id == name for record in store.open_records()):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    return wait
