"""Have snapshots taken by processes that are already warm when they are needed."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import msgspec

from fabwatch.watchdog.agent.tasks import Task, Tasks, python
from fabwatch.watchdog.capture.job import JobView

MARGIN_S = 1.0
"""On top of a capture's own deadline, before it is killed."""
_FOREVER = 10 * 365 * 86400.0

Captured = Callable[[bool], None]


class Captures:
    """Starts snapshots. One idle process waits, with everything imported, for the next order."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self._spare: tuple[Task, socket.socket] | None = None

    def warm_up(self) -> None:
        """Make sure that a process waits. Raises OSError."""
        if self._spare is not None:
            task, sock = self._spare
            if task.pidfd in self.tasks.running and not task.late:
                return
            sock.close()
            self._spare = None
        self._spare = self._spawn()

    def _spawn(self) -> tuple[Task, socket.socket]:
        ours, theirs = socket.socketpair()
        try:
            words = python("-m", "fabwatch.watchdog.capture", "--wait-fd", str(theirs.fileno()))
            task = self.tasks.start("capture", words, _FOREVER, keep=(theirs.fileno(),))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return task, ours

    def take(
        self,
        incident: Path,
        job: JobView,
        *,
        tier: int,
        snapshot: int,
        deadline_s: float,
        now: float,
        done: Captured,
    ) -> Task:
        """Order a snapshot; ``done`` hears whether a ledger was written. Raises OSError."""
        order = msgspec.json.encode(
            {
                "incident": str(incident),
                "tier": tier,
                "snapshot": snapshot,
                "deadline": deadline_s,
                "job": job,
            }
        )
        for _ in range(2):
            task, sock = self._spare or self._spawn()
            self._spare = None
            try:
                sock.setblocking(True)
                sock.settimeout(0.5)
                sock.sendall(order + b"\n")
            except OSError:  # it died while it waited: a new one gets the order
                self.tasks.cancel(task)
                sock.close()
                continue
            task.until = now + deadline_s + MARGIN_S
            task.done = _closing(sock, done)
            return task
        raise OSError("no process takes the order for a capture")

    def close(self) -> None:
        """End the process that waits."""
        if self._spare is not None:
            task, sock = self._spare
            self._spare = None
            sock.close()
            self.tasks.cancel(task)


def _closing(sock: socket.socket, done: Captured) -> Callable[[int | None, str], None]:
    """What hears of the end: gives the socket back first."""

    def ended(code: int | None, _output: str) -> None:
        sock.close()
        done(code == 0)

    return ended
