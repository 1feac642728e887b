"""The stub's end of its line to the agent, which may be slow, mute or dead at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fabwatch.watchdog.launch.processes import kill_and_reap, spawn_apart

_MOST = 1 << 20  # bytes of one line, and of what is read at one wake-up
_ALL_IN_ALL = 64 << 20
_LAST_S = 2.0


def agent_command() -> list[str]:
    """The agent, without the job's directory on its sys.path where Python can say so."""
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safe, "-m", "fabwatch.watchdog.agent"]


class AgentLink:
    """Start an agent and exchange JSON lines with it. Nothing here blocks or raises after start.

    Readable data raises SIGIO in the stub, so that one sigtimedwait waits for everything.
    """

    def __init__(
        self, command: Sequence[str], run_dir: str, log: int, environ: Mapping[str, str]
    ) -> None:
        """Start it. Raises OSError."""
        self.done = False
        self.open = True
        self.ended: int | None = None
        self._buffer = b""
        self._total = 0
        self._sock, theirs = socket.socketpair()
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fd = theirs.fileno()
            self.pid = spawn_apart(
                [*command, run_dir, str(fd)], environ, (null, log, log), keep=(fd,), session=True
            )
        except BaseException:
            self._sock.close()
            raise
        finally:
            os.close(null)
            theirs.close()
        self._sock.setblocking(False)
        number = self._sock.fileno()
        fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
        fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_ASYNC)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one line; a full or broken line is dropped with the agent."""
        if not self.open:
            return
        try:
            data = json.dumps(message).encode() + b"\n"
            # A SIGPIPE of ours would be taken for one that somebody sent, and passed on to the job.
            if self._sock.send(data, socket.MSG_NOSIGNAL) != len(data):
                self._hang_up()
        except OSError:
            self._hang_up()

    def heard(self) -> list[str]:
        """What the agent wants said since the last call; also notices ``done`` and the end."""
        said: list[str] = []
        taken = 0
        while self.open and taken < _MOST:
            try:
                data = self._sock.recv(65536)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            taken += len(data)
            self._total += len(data)
            self._buffer += data
            if not data or self._total > _ALL_IN_ALL or len(self._buffer) > 2 * _MOST:
                self._hang_up()
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                if isinstance(message.get("say"), str):
                    said.append(message["say"])
                self.done = self.done or message.get("done") is True
        return said

    def lost(self, pid: int, status: int) -> None:
        """Hear that child ``pid`` was reaped with wait ``status``."""
        if pid == self.pid:
            self.ended = os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Let it end: by itself after ``done``, else by SIGTERM; its group by SIGKILL 2 s later."""
        self._hang_up()
        if self.ended is not None:
            return
        if not self.done:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGTERM)
        until = time.monotonic() + _LAST_S
        while time.monotonic() < until:
            if _zombie(self.pid):
                break
            time.sleep(0.01)
        # Its pid is ours until it is reaped, so the group is still its own.
        kill_and_reap(self.pid, group=True)

    def _hang_up(self) -> None:
        if self.open:
            self.open = False
            self._sock.close()


def _zombie(pid: int) -> bool:
    """Whether our child ``pid`` has ended, without reaping it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
