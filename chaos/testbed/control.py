"""Start a test bed, run commands on its hosts, end it: the owner's side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fabwatch.chaos.model import Link
from fabwatch.chaos.testbed.namespaces import start_time
from fabwatch.chaos.testbed.spec import Host, Spec

SETUP_S = 60.0
"""A bed stands within a second or two; on a loaded machine it gets so long."""

SWITCH = 1
"""Where the bridges are: the bed's process 1, as seen inside."""


class BedError(RuntimeError):
    """No test bed could be made, and why."""


@dataclass(frozen=True)
class Bed:
    """A test bed that stands. ``init`` is its process 1 as seen from outside."""

    spec: Spec
    init: int
    start: int
    holders: Mapping[str, int]

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Its hosts, by index."""
        return self.spec.plan()

    @property
    def alive(self) -> bool:
        """Whether it still stands."""
        return start_time(self.init) == self.start

    def inside(self, host: str | int) -> int:
        """The holder of a host as seen inside the bed; "switch" is the switch.

        Raises KeyError with the names that there are.
        """
        if host == "switch":
            return SWITCH
        name = self.hosts[host].name if isinstance(host, int) else host
        if name not in self.holders:
            raise KeyError(f"no host {name!r}; there are {', '.join(self.holders)} and switch")
        return self.holders[name]

    def link(self, host: str | int, rail: int = 0) -> Link:
        """The interface of a host on a rail, as a fault's target. Raises KeyError or OSError."""
        inner = self.inside(host)
        children = Path(f"/proc/{self.init}/task/{self.init}/children").read_text().split()
        for pid in (self.init, *map(int, children)):
            status = Path(f"/proc/{pid}/status").read_text()
            seen = next(x for x in status.splitlines() if x.startswith("NSpid:")).split()
            if int(seen[-1]) == inner:
                return Link(f"eth{rail}", f"/proc/{pid}/ns/net")
        raise OSError(0, f"the process that holds {host} is gone")

    def argv(self, host: str | int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on a host."""
        words = [str(self.init), str(self.start), str(self.inside(host)), "--", *command]
        return [sys.executable, "-m", "fabwatch.chaos.testbed.enter", *words]

    def environment(self, host: str | int, user: Mapping[str, str]) -> dict[str, str]:
        """``user`` with what differs on the host."""
        if host == "switch":
            return dict(user)
        self.inside(host)
        found = self.hosts[host] if isinstance(host, int) else self._named(host)
        return {**user, **found.environment(f"{self.spec.name}-{self.init}", user)}

    def _named(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def popen(
        self,
        host: str | int,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> subprocess.Popen[Any]:
        """Start ``command`` on a host; ``more`` goes to subprocess.Popen."""
        environment = self.environment(host, os.environ if env is None else env)
        return subprocess.Popen(self.argv(host, command), env=environment, **more)

    def run(
        self, host: str | int, command: Sequence[str], timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on a host and return what it said.

        Raises subprocess.TimeoutExpired after ``timeout`` seconds.
        """
        return subprocess.run(
            self.argv(host, command),
            env=self.environment(host, os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def end(self, within: float = 30.0) -> bool:
        """End the bed by its process 1; whether it is gone ``within`` seconds."""
        import signal

        until = time.monotonic() + within
        while self.alive and time.monotonic() < until:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.init, signal.SIGKILL)
            time.sleep(0.05)
        return not self.alive

    def as_json(self) -> dict[str, Any]:
        """For a state file; :meth:`from_json` reads it."""
        return {
            "schema": "fabwatch.testbed/1",
            "spec": asdict(self.spec),
            "init": self.init,
            "start": self.start,
            "holders": dict(self.holders),
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Bed:
        """A bed that another process started. Raises ValueError if that is no bed's state."""
        try:
            spec = Spec(**{**found["spec"], "gpus": tuple(found["spec"]["gpus"])})
            return cls(spec, int(found["init"]), int(found["start"]), dict(found["holders"]))
        except (KeyError, TypeError, AttributeError) as err:
            raise ValueError(f"not the state of a test bed: {err!r}") from None


def _lines(process: subprocess.Popen[bytes], until: float) -> Iterator[dict[str, Any]]:
    """The JSON lines of a bed that is being set up."""
    assert process.stdout is not None
    fd, rest = process.stdout.fileno(), b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            raise BedError(f"the test bed did not stand within {SETUP_S:.0f} s")
        more = os.read(fd, 65536)
        if not more:
            raise BedError("the test bed's process ended while it was being set up")
        *whole, rest = (rest + more).split(b"\n")
        for line in whole:
            yield json.loads(line)


def start(
    spec: Spec, rootless: bool = False, detached: bool = False
) -> tuple[Bed, subprocess.Popen[bytes]]:
    """Set a bed up. It ends with this process, or with the one returned; ``detached``: neither.

    Raises BedError with the reason if that is not possible here.
    """
    command = [sys.executable, "-m", "fabwatch.chaos.testbed.bed", json.dumps(asdict(spec))]
    if rootless:
        command.append("rootless")
    stdin: int = subprocess.PIPE
    if detached:  # a pipe that nobody closes: both of its ends are the bed's own
        stdin, keep = os.pipe()
        os.set_inheritable(keep, True)
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        # A bed that outlives its maker must not hold open what its maker's reader waits for.
        stderr=subprocess.DEVNULL if detached else None,
        start_new_session=True,
        pass_fds=(keep,) if detached else (),
    )
    if detached:
        os.close(stdin)
        os.close(keep)
    init, until = 0, time.monotonic() + SETUP_S
    try:
        for said in _lines(process, until):
            if "error" in said:
                raise BedError(said["error"])
            if "init" in said:
                init = said["init"]
            if "hosts" in said:
                assert process.stdout is not None
                process.stdout.close()
                return Bed(spec, init, start_time(init), said["hosts"]), process
    except BaseException:
        process.kill()
        process.wait()
        raise
    raise BedError("the test bed said nothing")


@contextlib.contextmanager
def open_bed(spec: Spec | None = None, *, rootless: bool = False, **more: Any) -> Iterator[Bed]:
    """Hold a bed for the block; whatever runs on it ends with it. ``more`` goes to Spec.

    Raises BedError with the reason if none can be made here.
    """
    bed, process = start(spec or Spec(**more), rootless)
    try:
        yield bed
    finally:
        bed.end()
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
