"""Append ledger lines to disk so that a full disk loses as little as possible."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from fabwatch.watchdog.evidence.ledger import Evidence

_encode = msgspec.json.Encoder().encode


class LedgerFile:
    """INCIDENT/ledger.jsonl, one write a line; lines that do not fit are tried again at the end.

    Never raises after it was made: ``lost`` lines are what the disk did not take.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lost: list[bytes] = []

    def add(self, line: Evidence) -> None:
        """Append one line."""
        data = _encode(line) + b"\n"
        if not self._append(data):
            self.lost.append(data)

    def bytes_of(self, host: str) -> int:
        """Bytes of artefacts that earlier captures of this incident wrote for ``host``."""
        total = 0
        try:
            raw = self.file.read_bytes()
        except OSError:
            return 0
        for line in raw.splitlines():
            with contextlib.suppress(msgspec.MsgspecError):
                entry = msgspec.json.decode(line, type=Evidence)
                if entry.host in (host, ""):
                    total += entry.size
        return total

    def close(self) -> int:
        """Try the lost lines once more. Returns how many the disk still did not take."""
        lines, self.lost = self.lost, []
        self.lost = [data for data in lines if not self._append(data)]
        return len(self.lost)

    def _append(self, data: bytes) -> bool:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            fd = os.open(self.file, flags, 0o600)
        except OSError:
            return False
        try:
            size = os.fstat(fd).st_size
            try:
                done = os.write(fd, data)
            except OSError:
                return False
            if done == len(data):
                return True
            # Half a line fits: take it back, unless somebody wrote behind it.
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_size == size + done:
                    os.ftruncate(fd, size)
            return False
        finally:
            os.close(fd)
