"""The agent's end of its line to the stub, and its own socket for requests."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import msgspec

_MOST = 1 << 20
_PEER = struct.Struct("=iii")


def _messages(buffer: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """Whole JSON lines that are objects, and the rest."""
    *lines, rest = buffer.split(b"\n")
    found = []
    for line in lines:
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            value = msgspec.json.decode(line)
            if isinstance(value, dict):
                found.append(value)
    return found, rest


class Channel:
    """JSON lines over one socket. Never blocks; a broken line is given up, and ``open`` says so."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.open = True
        self._in = b""
        self._out = b""

    def fileno(self) -> int:
        """To be polled."""
        return self.sock.fileno()

    def receive(self) -> list[dict[str, Any]]:
        """What came in since the last call."""
        try:
            data = self.sock.recv(65536)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            data = b""
        if not data:
            self.close()
            return []
        found, self._in = _messages(self._in + data)
        if len(self._in) > _MOST:
            self.close()
        return found

    def send(self, message: Any) -> None:
        """Queue one line and send what goes."""
        if self.open:
            self._out += msgspec.json.encode(message) + b"\n"
            self.flush()

    def flush(self) -> None:
        """Send what is queued, as far as it goes."""
        while self.open and self._out:
            try:
                self._out = self._out[self.sock.send(self._out) :]
            except (BlockingIOError, InterruptedError):
                if len(self._out) > 4 * _MOST:
                    self.close()
                return
            except OSError:
                self.close()

    @property
    def waiting(self) -> bool:
        """Whether something is queued."""
        return self.open and bool(self._out)

    def close(self) -> None:
        """Give it up."""
        if self.open:
            self.open = False
            self.sock.close()


class ControlSocket:
    """agent.sock: requests of `fabwatch capture` and `fabwatch top`, of this user or root only."""

    def __init__(self, path: Path) -> None:
        """Listen. Raises OSError."""
        self.path = path
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        old = os.umask(0o177)
        try:
            self.sock.bind(str(path))
        finally:
            os.umask(old)
        self.sock.listen(8)

    def fileno(self) -> int:
        """To be polled."""
        return self.sock.fileno()

    def accept(self) -> Channel | None:
        """One new client; None when there is none or it is somebody else's."""
        try:
            client, _ = self.sock.accept()
        except OSError:
            return None
        raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        _, uid, _ = _PEER.unpack(raw)
        if uid not in (0, os.geteuid()):
            client.close()
            return None
        return Channel(client)

    def close(self) -> None:
        """Stop listening."""
        self.sock.close()
        with contextlib.suppress(OSError):
            self.path.unlink()
