"""Ask NCCL's RAS service for its status, without the vendor's client."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

HELLO_S = 1.0
TRIES = 8
LEG_S = 5
"""What NCCL may wait for one process. An answer can take twice that and a moment."""

ANSWER_S = 2 * LEG_S + 1.0
CAP = 8 << 20


class RasError(Exception):
    """No report. ``refused``: nobody listens, which is evidence too."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class Report:
    """One status report. ``form`` is text or json; ``whole`` is False when time ran out."""

    form: str
    data: bytes
    whole: bool


def status(host: str, port: int, *, form: str, until: float) -> Report:
    """``VERBOSE STATUS`` as text or json (text if it is too old for json). Raises RasError.

    All processes of a host listen on one port; a connection may land on a stopped one, which
    accepts and is mute. Hence a short handshake and another try.
    """
    last = "no time was left"
    for _ in range(TRIES):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            with _Line(host, port, min(HELLO_S, left)) as line:
                hello = line.ask("CLIENT PROTOCOL 2")
                if not hello.upper().startswith("SERVER PROTOCOL "):
                    raise RasError(f"{host}:{port} is not NCCL RAS: {hello[:60]!r}")
                answer = line.ask(f"TIMEOUT {LEG_S}")
                if answer != "OK":
                    raise RasError(f"TIMEOUT refused: {answer[:80]}")
                if form == "json" and line.ask("SET FORMAT json") != "OK":
                    form = "text"
                line.send("VERBOSE STATUS")
                data, whole = line.rest(min(until, time.monotonic() + ANSWER_S))
                return Report(form, data, whole)
        except ConnectionRefusedError as err:
            raise RasError(f"{host}:{port}: connection refused", refused=True) from err
        except OSError as err:
            last = f"{host}:{port}: {err or type(err).__name__}"
    raise RasError(last)


class _Line:
    """The line protocol on one connection."""

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self._sock = socket.create_connection((host, port), timeout=timeout)
        self._rest = b""

    def __enter__(self) -> _Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, text: str) -> None:
        self._sock.sendall(text.encode() + b"\n")

    def ask(self, text: str) -> str:
        self.send(text)
        until = time.monotonic() + HELLO_S
        while b"\n" not in self._rest:
            self._sock.settimeout(max(0.001, until - time.monotonic()))
            data = self._sock.recv(4096)
            if not data:
                raise ConnectionResetError("closed during the handshake")
            self._rest += data
            if len(self._rest) > 1 << 16:
                raise RasError("answered a line without an end")
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    def rest(self, until: float) -> tuple[bytes, bool]:
        """All that comes until the server closes; False when time or the cap ended it."""
        data = bytearray(self._rest)
        while len(data) < CAP:
            left = until - time.monotonic()
            if left <= 0:
                return bytes(data), False
            self._sock.settimeout(left)
            try:
                part = self._sock.recv(1 << 16)
            except TimeoutError:
                return bytes(data), False
            except OSError:
                return bytes(data), False
            if not part:
                return bytes(data), True
            data += part
        return bytes(data), False
