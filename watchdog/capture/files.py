"""Write artefacts: private, bounded, masked, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections import deque
from pathlib import Path

from fabwatch.watchdog.capture.masking import mask_text
from fabwatch.watchdog.capture.outcome import Outcome
from fabwatch.watchdog.evidence.ledger import Status

CAP = 4 << 20
"""Bytes that one artefact may have unless its collector says otherwise."""

SMALL = 256 << 10
"""Artefacts up to this size may also use the last tenth of the budget."""


class Budget:
    """Bytes that may still be written, shared by all collector children of a capture.

    A record lock on an anonymous file: the kernel drops it when a child is killed.
    """

    def __init__(self, limit: int, used: int = 0) -> None:
        self.limit = limit
        self._fd = os.memfd_create("fabwatch-budget", os.MFD_CLOEXEC)
        self._thread = threading.Lock()
        os.pwrite(self._fd, used.to_bytes(8, "little"), 0)

    def take(self, size: int) -> bool:
        """Take ``size`` bytes if they are left. Large ones leave the last tenth alone."""
        limit = self.limit if size <= SMALL else self.limit * 9 // 10
        with self._thread:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                used = int.from_bytes(os.pread(self._fd, 8, 0), "little")
                if used + size > limit:
                    return False
                os.pwrite(self._fd, (used + size).to_bytes(8, "little"), 0)
                return True
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def fileno(self) -> int:
        """The descriptor that a child must keep open."""
        return self._fd

    @property
    def used(self) -> int:
        """Bytes taken so far."""
        return int.from_bytes(os.pread(self._fd, 8, 0), "little")


class HeadTail:
    """Keep the beginning and the end of a stream that may be far too large.

    ``head`` bytes of the beginning, ``tail`` of the end; ``total`` counts all.
    """

    def __init__(self, head: int, tail: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._head_cap, self._tail_cap = head, tail
        self._tail: deque[bytes] = deque()
        self._held = 0

    def feed(self, data: bytes) -> None:
        """Take the next part of the stream."""
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._held += len(data)
        while self._held - len(self._tail[0]) >= self._tail_cap:
            self._held -= len(self._tail.popleft())

    @property
    def whole(self) -> bool:
        """Whether nothing was dropped."""
        return self.total == len(self._head) + self._held

    def parts(self) -> tuple[bytes, bytes]:
        """Beginning and end; together they are everything if nothing was dropped."""
        tail = b"".join(self._tail)
        if not self.whole and len(tail) > self._tail_cap:
            tail = tail[-self._tail_cap :]
        return bytes(self._head), tail


def clip(data: bytes, cap: int) -> bytes:
    """``data`` with its middle cut out, so that it and the marker fit in ``cap`` bytes."""
    if len(data) <= cap:
        return data
    marker = b"\n[fabwatch: %d bytes cut out here]\n" % (len(data) - cap)
    keep = max(0, cap - len(marker))
    head = keep // 2
    return data[:head] + marker + data[len(data) - (keep - head) :]


def make_private(folder: Path) -> None:
    """Make a folder and its parents, mode 0700. Raises OSError."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def write_private(path: Path, data: bytes) -> None:
    """Write a file of mode 0600 under its name only when it is whole. Raises OSError."""
    make_private(path.parent)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(part, flags, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def save(
    budget: Budget,
    path: Path,
    data: bytes,
    *,
    cap: int = CAP,
    mask: bool = True,
    masked: int = 0,
    note: str = "",
    partial: bool = False,
    source: str = "",
) -> Outcome:
    """Write one artefact and say how it went: ok, partial (clipped) or failed (disk, budget).

    ``mask``: hide secrets in it first; ``masked``: how many were hidden already. ``partial``: it
    is known not to be all; ``note``: why, or whatever the ledger should say.
    """
    notes = [note] if note else []
    if mask:
        data, count = mask_text(data)
        masked += count
    if masked:
        notes.append(f"{masked} secret{'s' if masked > 1 else ''} masked")
    if len(data) > cap:
        notes.append(f"{len(data)} bytes clipped to {cap}")
        data, partial = clip(data, cap), True
    if not budget.take(len(data)):
        limit = budget.limit >> 20
        notes.append(f"skipped {len(data)} bytes: the incident's {limit} MiB are used up")
        return Outcome(Status.FAILED, source=source, reason="; ".join(notes))
    try:
        write_private(path, data)
    except OSError as err:
        return Outcome(Status.FAILED, source=source, reason=disk_reason(err, path))
    return Outcome(
        Status.PARTIAL if partial else Status.OK,
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        source=source,
        reason="; ".join(notes),
    )


def disk_reason(err: OSError, path: Path) -> str:
    """Why an artefact could not be written, for people."""
    if err.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"disk full: {path.name} could not be written; free space and capture again"
    return f"{path.name} could not be written: {err.strerror or err}"
