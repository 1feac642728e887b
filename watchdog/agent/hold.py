"""Hold the launcher's main thread for a few seconds, so that it cannot end the other ranks.

A small process of its own does it: a trace belongs to one thread of the tracer, and that thread
must never be stuck in anything else. If it dies, by whatever cause, the kernel lets go. It is
forked from the agent before there is anything to inherit, and dies with the agent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import time
from dataclasses import dataclass

LIMIT_S = 3.0
"""Never longer than this."""

_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000
_PDEATHSIG = 1
_REQUEST = struct.Struct("=iId")  # pid, or 0 to let go; number of the request; seconds
_ANSWER = struct.Struct("=iIi")  # pid; number; 0 held, 1 let go, 2 it ended, -errno not held


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request: ``held``, ``released``, ``ended`` or ``refused`` (``error``)."""

    pid: int
    number: int
    what: str
    error: int = 0

    @property
    def reason(self) -> str:
        """Why it was refused, for people."""
        if self.error in (errno.EPERM, errno.EACCES):
            return "already traced by somebody else, or tracing is not permitted here"
        if self.error == errno.ESRCH:
            return "the launcher had already ended"
        return os.strerror(self.error) if self.error else ""


class Holder:
    """The agent's end. One hold at a time; a new request replaces the old one."""

    def __init__(self) -> None:
        """Fork the process that holds. Call it before threads are started. Raises OSError."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                mine.close()
                _serve(theirs, parent)
            finally:
                os._exit(0)
        theirs.close()
        mine.setblocking(False)
        self.socket = mine
        self._number = 0

    def fileno(self) -> int:
        """To be polled for answers."""
        return self.socket.fileno()

    def hold(self, pid: int, seconds: float = LIMIT_S) -> int:
        """Ask to hold the main thread of ``pid``; returns the request's number, 0 on failure."""
        self._number += 1
        try:
            self.socket.send(_REQUEST.pack(pid, self._number, min(seconds, LIMIT_S)))
        except OSError:
            return 0
        return self._number

    def release(self) -> None:
        """Ask to let go. The process that holds lets go by itself at the limit."""
        with contextlib.suppress(OSError):
            self.socket.send(_REQUEST.pack(0, self._number, 0.0))

    def answers(self) -> list[Answer]:
        """Answers that came since the last call. Never blocks."""
        found: list[Answer] = []
        while True:
            try:
                data = self.socket.recv(_ANSWER.size)
            except OSError:
                return found
            if len(data) < _ANSWER.size:
                return found
            pid, number, code = _ANSWER.unpack(data)
            what = {0: "held", 1: "released", 2: "ended"}.get(code, "refused")
            found.append(Answer(pid, number, what, -code if code < 0 else 0))

    def close(self) -> None:
        """End the process; what it held goes on."""
        self.socket.close()
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            try:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    return
            except ChildProcessError:
                return
            time.sleep(0.005)
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


# ------------------------------------------------------------------ inside the holding process


def _libc() -> ctypes.CDLL:
    """The C library with ptrace declared."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


def _serve(sock: socket.socket, parent: int) -> None:
    """Hold on request, let go on request, at the limit, and at the end of the agent."""
    libc = _libc()
    libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _close_others(sock.fileno())
    sock.setblocking(False)
    while True:
        select.select([sock], [], [])
        request = _receive(sock)
        while request is not None and request[0] > 0:
            request = _hold(libc, sock, *request)
        if request is None:
            return


def _close_others(keep: int) -> None:
    """Close what was inherited: the stub's channel must not stay open because of us."""
    top = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, keep)
    os.closerange(keep + 1, min(top if top > 0 else 1 << 16, 1 << 16))


def _receive(sock: socket.socket) -> tuple[int, int, float] | None:
    """One request; None when the agent is gone."""
    try:
        data = sock.recv(_REQUEST.size)
    except BlockingIOError:
        return (0, 0, 0.0)
    except OSError:
        return None
    if len(data) < _REQUEST.size:
        return None
    pid, number, seconds = _REQUEST.unpack(data)
    return pid, number, seconds


def _hold(
    libc: ctypes.CDLL, sock: socket.socket, pid: int, number: int, seconds: float
) -> tuple[int, int, float] | None:
    """Seize, interrupt, wait, detach. Returns the next request, (0, ..) if there is none yet."""

    def answer(code: int) -> None:
        with contextlib.suppress(OSError):
            sock.send(_ANSWER.pack(pid, number, code))

    deadline = time.monotonic() + min(seconds, LIMIT_S)
    if libc.ptrace(_SEIZE, pid, None, None) != 0:
        answer(-ctypes.get_errno())
        return (0, 0, 0.0)
    libc.ptrace(_INTERRUPT, pid, None, None)
    told = False
    stop: int | None = None
    request: tuple[int, int, float] | None = (0, 0, 0.0)
    while time.monotonic() < deadline:
        change = _wait(pid)
        if change is _ENDED:
            answer(2)
            return (0, 0, 0.0)
        stop = change if isinstance(change, int) else stop
        if stop is not None and not told:
            answer(0)
            told = True
        left = deadline - time.monotonic()
        ready, _, _ = select.select([sock], [], [], max(min(0.05 if told else 0.0005, left), 0))
        if ready:
            request = _receive(sock)
            break
    _let_go(libc, pid, stop)
    answer(1)
    return request


_ENDED = object()
"""What :func:`_wait` says of a process that is gone."""


def _wait(pid: int) -> object:
    """Look without waiting: None, the wait status of a stop, or _ENDED."""
    try:
        got, status = os.waitpid(pid, os.WNOHANG | _WALL)
    except ChildProcessError:
        return _ENDED
    if got == 0:
        return None
    return status if os.WIFSTOPPED(status) else _ENDED


def _let_go(libc: ctypes.CDLL, pid: int, stop: int | None) -> None:
    """Detach. That needs a stopped target; one stuck in the kernel is left by ending ourselves.

    A target that stopped because a signal came in (SIGCHLD of the dead rank, often) gets that
    signal now; otherwise it would be lost.
    """
    until = time.monotonic() + 0.5
    while stop is None and time.monotonic() < until:
        change = _wait(pid)
        if change is _ENDED:
            return
        if isinstance(change, int):
            stop = change
        else:
            time.sleep(0.001)
    if stop is None:
        os._exit(1)
    came_in = 0 if stop >> 16 else os.WSTOPSIG(stop)
    if libc.ptrace(_DETACH, pid, None, came_in) != 0 and ctypes.get_errno() != errno.ESRCH:
        os._exit(1)
