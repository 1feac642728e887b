"""Answer the agent's datagrams: write a flight-recorder pickle with frames where it asks.

Sockets are plain descriptor numbers whose identity is checked before each use: if the job closes
"all" descriptors and opens others under our numbers, those are never read, written or closed.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable
from typing import Any

from . import c10d, hook

FUNCTIONS = {"cpu": "_dump_fr_trace", "nccl": "_dump_nccl_trace"}


class Descriptor:
    """A descriptor that is known to be ours only while it still is the same file."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.identity = self._look()

    def _look(self) -> tuple[int, int]:
        found = os.fstat(self.fd)
        return found.st_dev, found.st_ino

    def ours(self) -> bool:
        """Whether the number still means the file that we opened."""
        try:
            return self._look() == self.identity
        except OSError:
            return False

    def close(self) -> None:
        """Close it if it is still ours."""
        if self.ours():
            os.close(self.fd)


class Control:
    """The datagram socket ``p<pid>.sock``, reopened when the job closed it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor: Descriptor | None = None
        self.failed = False

    def open(self) -> bool:
        """Bind the socket; False, said once, if that cannot be."""
        if self.descriptor is not None and self.descriptor.ours():
            return True
        self.descriptor = None
        if self.failed:
            return False
        try:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass
            kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            made = socket.socket(socket.AF_UNIX, kind)
            try:
                made.bind(self.path)
            except BaseException:
                made.close()
                raise
            self.descriptor = Descriptor(made.detach())
        except Exception as error:
            self.failed = True
            hook.problem(f"control socket: {error!r}")
            return False
        return True

    def wait(self, seconds: float) -> bytes | None:
        """The next datagram, or None after ``seconds`` (or at once when the socket was lost)."""
        held = self.descriptor
        if held is None or not held.ours():
            time.sleep(min(seconds, 1.0))
            self.open()
            return None
        poll = select.poll()
        poll.register(held.fd, select.POLLIN)
        if not poll.poll(max(0, int(seconds * 1000 + 0.999))) or not held.ours():
            return None
        try:
            return os.read(held.fd, 65536)
        except BlockingIOError:
            return None
        except OSError:
            self.close()
            return None

    def close(self) -> None:
        """Give up the descriptor (after a fork); the socket's file stays the parent's."""
        if self.descriptor is not None:
            self.descriptor.close()
        self.descriptor = None


def wake(path: str) -> None:
    """Interrupt the ``wait`` of this process's own control socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto(b'{"do":"wake"}', path)


def _stacks_safe() -> bool:
    """Whether symbolising cannot start helpers whose pipes torch would keep and share."""
    cpp = any(
        os.environ.get(name, "").lower() in ("1", "true", "t", "yes", "y", "on")
        for name in ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK")
    )
    return not cpp or os.environ.get("TORCH_SYMBOLIZE_MODE") in ("dladdr", "fast")


def _dump(request: Any) -> bytes:
    name = FUNCTIONS.get(str(request.get("recorder", "cpu")))
    if name is None:
        raise ValueError(f"unknown recorder {request.get('recorder')!r}")
    call: Callable[..., Any] | None = getattr(c10d.native(), name, None)
    if call is None:
        raise ValueError(f"this torch has no {name}")
    stacks = bool(request.get("stacks", True)) and _stacks_safe()
    for arguments in ((True, stacks, False), (True, stacks), ()):
        try:
            return bytes(call(*arguments))
        except TypeError:  # fewer parameters in older torch
            continue
    raise ValueError(f"{name} takes other arguments in this torch")


def _inside(path: str, folders: tuple[str, ...]) -> bool:
    """Whether ``path`` lies in one of ``folders``, links resolved."""
    parent = os.path.realpath(os.path.dirname(path))
    roots = [os.path.realpath(folder) for folder in folders if folder]
    return any(parent == root or parent.startswith(root + os.sep) for root in roots)


def _write(path: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    part = path + ".part"
    fd = os.open(part, flags, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(data)
    os.replace(part, path)


def answer(datagram: bytes, folders: tuple[str, ...], lock: Any) -> str:
    """Do what ``datagram`` asks; "" if it was done or needs nothing, else the reason.

    Only files inside ``folders`` are written. ``lock`` is held while torch is called: a process
    that exits takes it for good.
    """
    try:
        request = json.loads(datagram)
        wish = request.get("do")
        if wish == "wake":
            return ""
        if wish != "fr-pickle":
            return f"unknown request {wish!r}"
        path = request["to"]
        if not isinstance(path, str) or not os.path.isabs(path) or not _inside(path, folders):
            return f"refused to write {path!r}: not inside the run"
    except Exception as error:
        return f"unreadable request: {error!r}"
    try:
        if not lock.acquire(timeout=1):
            raise RuntimeError("the process is exiting")
        try:
            data = _dump(request)
        finally:
            lock.release()
        _write(path, data)
        return ""
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")[:500]
        try:
            _write(path + ".err", (reason + "\n").encode("utf-8", "replace"))
        except OSError:
            return reason
        return ""
