"""Run children that must never stop the watch: each in a session of its own, with a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO

from fabwatch.watchdog.ranks import ATTEMPT, FAMILIES

OUTPUT_CAP = 1 << 20

Done = Callable[[int | None, str], None]
"""Called with the exit code (negative: signal; None: past its deadline) and its stdout."""

_STRIPPED = {name for family in FAMILIES for name in family} | {ATTEMPT}


def python(*words: str) -> list[str]:
    """A command of our own package, without the working directory on its path."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, *words]


def environment() -> dict[str, str]:
    """Ours, without what would make a child look like a rank or like a part of the job."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _STRIPPED
        and name not in ("FABWATCH_RUN_DIR", "FABWATCH_RUN_ID", "FABWATCH_SOCKETS")
    }
    kept.setdefault("COLUMNS", "100")
    return kept


@dataclass(slots=True)
class Task:
    """One child. ``pidfd`` becomes readable when it has ended."""

    name: str
    process: subprocess.Popen[bytes]
    pidfd: int
    until: float
    done: Done | None
    output: IO[bytes] | None
    late: bool = False
    since_killed: float = 0.0


@dataclass
class Tasks:
    """All children that run."""

    running: dict[int, Task] = field(default_factory=dict)  # by pidfd
    left_behind: list[Task] = field(default_factory=list)

    def start(
        self,
        name: str,
        command: Sequence[str],
        seconds: float,
        done: Done | None = None,
        *,
        keep: tuple[int, ...] = (),
        output: bool = False,
        extra: dict[str, str] | None = None,
    ) -> Task:
        """Start a child. Raises OSError."""
        out = tempfile.TemporaryFile() if output else None  # noqa: SIM115 - closed with the task
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out if out is not None else subprocess.DEVNULL,
                pass_fds=keep,
                start_new_session=True,
                env={**environment(), **(extra or {})},
            )
        except BaseException:
            if out is not None:
                out.close()
            raise
        task = Task(
            name, process, os.pidfd_open(process.pid), time.monotonic() + seconds, done, out
        )
        self.running[task.pidfd] = task
        return task

    def next_deadline(self) -> float | None:
        """Monotonic time at which :meth:`expire` has something to do."""
        return min((task.until for task in self.running.values()), default=None)

    def ended(self, pidfd: int) -> None:
        """Take the end of a child: reap it, its group and its output, and tell who asked."""
        task = self.running.pop(pidfd, None)
        if task is None:
            return
        code: int | None = task.process.wait()
        _kill_group(task.process.pid)
        os.close(task.pidfd)
        if task.late:
            code = None
        self._tell(task, code)

    def _tell(self, task: Task, code: int | None) -> None:
        text = ""
        if task.output is not None:
            with task.output as output:
                output.seek(0)
                text = output.read(OUTPUT_CAP).decode("utf-8", "replace")
        if task.done is not None:
            task.done(code, text)

    def expire(self, now: float) -> None:
        """Kill what is past its deadline; what cannot die (state D) is left behind."""
        for task in list(self.running.values()):
            if task.until > now:
                continue
            if not task.late:
                task.late = True
                task.until = now + 1.0
                _kill_group(task.process.pid)
                continue
            del self.running[task.pidfd]
            os.close(task.pidfd)
            self.left_behind.append(task)
            self._tell(task, None)
        self.left_behind = [t for t in self.left_behind if t.process.poll() is None]

    def cancel(self, task: Task) -> None:
        """Kill a child and forget who asked for it."""
        task.done = None
        task.late = True
        task.until = time.monotonic() + 1.0
        _kill_group(task.process.pid)

    def end_all(self, seconds: float = 1.0) -> None:
        """Kill all that is left, and reap what dies."""
        for task in list(self.running.values()):
            self.cancel(task)
        until = time.monotonic() + seconds
        while self.running and time.monotonic() < until:
            for task in list(self.running.values()):
                if task.process.poll() is not None:
                    self.ended(task.pidfd)
            if self.running:
                time.sleep(0.005)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
