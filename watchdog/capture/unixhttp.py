"""Ask an HTTP server on a unix socket, with a deadline and a bound on what is kept."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

from fabwatch.watchdog.capture.files import HeadTail

HEADER_CAP = 64 << 10
TOTAL_CAP = 1 << 30
"""A server that sends more than this is not answering, it is flooding."""


class Unanswered(Exception):
    """No usable answer. ``kind``: nobody, silent, garbage, cut."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body; ``head`` + ``tail`` are the whole body when ``total`` is their length."""

    status: int
    head: bytes
    tail: bytes
    total: int

    @property
    def whole(self) -> bool:
        """Whether no byte of the body was dropped."""
        return self.total == len(self.head) + len(self.tail)


def post(path: Path, target: str, *, until: float, keep: int) -> Answer:
    """POST with an empty body. ``until``: monotonic seconds; ``keep``: bytes of the body to keep.

    Raises Unanswered.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        try:
            _connect(sock, path, until)
            sock.sendall(
                f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
                "Connection: close\r\n\r\n".encode()
            )
        except TimeoutError:
            raise Unanswered("silent", "does not accept a connection") from None
        except OSError as err:
            raise Unanswered("nobody", err.strerror or str(err)) from None
        return _receive(sock, until, keep)


def _connect(sock: socket.socket, path: Path, until: float) -> None:
    """Connect, waiting for room in the backlog of a server that does not accept just now."""
    while True:
        sock.settimeout(_left(until))
        try:
            sock.connect(str(path))
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise TimeoutError from None
            time.sleep(0.01)


def _left(until: float) -> float:
    return max(0.001, until - time.monotonic())


def _receive(sock: socket.socket, until: float, keep: int) -> Answer:
    raw = b""
    body = HeadTail(min(HEADER_CAP, keep // 2), keep - min(HEADER_CAP, keep // 2))
    status, length = 0, -1
    while True:
        if time.monotonic() >= until:
            raise _late(status, body.total, length)
        sock.settimeout(_left(until))
        try:
            data = sock.recv(1 << 18)
        except TimeoutError:
            raise _late(status, body.total, length) from None
        except OSError as err:
            raise Unanswered("cut", f"connection broke: {err.strerror or err}") from None
        if not data and not status:
            said = f"sent {len(raw)} bytes that are no HTTP" if raw else "closed without a word"
            raise Unanswered("garbage" if raw else "cut", said)
        if not status:
            raw += data
            end = raw.find(b"\r\n\r\n")
            if not b"HTTP/".startswith(raw[:5]) and not raw.startswith(b"HTTP/"):
                raise Unanswered("garbage", f"answered no HTTP: {raw[:40]!r}")
            if end < 0:
                if len(raw) > HEADER_CAP:
                    raise Unanswered("garbage", "answered headers without an end")
                continue
            status, length = _headers(raw[:end])
            data = raw[end + 4 :]
            if data:
                body.feed(data)
        elif data:
            body.feed(data)
        else:  # the end
            if 0 <= body.total < length:
                raise Unanswered("cut", f"closed after {body.total} of {length} bytes")
            return Answer(status, *body.parts(), body.total)
        if 0 <= length <= body.total:
            return Answer(status, *body.parts(), body.total)
        if body.total > TOTAL_CAP:
            raise Unanswered("garbage", f"sent more than {TOTAL_CAP >> 20} MiB")


def _late(status: int, got: int, length: int) -> Unanswered:
    if not status:
        return Unanswered("silent", "accepted the connection and did not answer")
    of = f" of {length}" if length >= 0 else ""
    return Unanswered("cut", f"only {got}{of} bytes came in time")


def _headers(raw: bytes) -> tuple[int, int]:
    first, *lines = raw.split(b"\r\n")
    try:
        status = int(first.split()[1])
        if not 100 <= status <= 999:
            raise ValueError(status)
        length = -1
        for line in lines:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-length":
                length = int(value)
            if name.strip().lower() == b"transfer-encoding" and b"chunked" in value.lower():
                raise Unanswered("garbage", "answers in chunks, which no worker server does")
    except (ValueError, IndexError):
        raise Unanswered("garbage", f"answered a bad HTTP header: {first[:60]!r}") from None
    return status, length
