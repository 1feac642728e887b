"""Say fabwatch's own lines on stderr, and survive whatever stderr is."""

from __future__ import annotations

import os
import select
import time

PREFIX = b"fabwatch: "
_PATIENCE_S = 2.0
_CHUNK = 4096  # a pipe that polls writable takes this much without blocking


class Voice:
    """Prefixed lines on a file descriptor that may be closed, full, stopped or broken.

    A terminal held by Ctrl-S or a reader that sleeps costs at most ``_PATIENCE_S`` seconds once,
    then nothing more is said. Never raises.
    """

    def __init__(self, quiet: bool = False, fd: int = 2) -> None:
        self.quiet = quiet
        self.fd = fd
        self.lost = False
        try:
            os.fstat(fd)
        except OSError:
            self.lost = True

    def say(self, text: str) -> None:
        """Print each line of ``text`` with the prefix, unless --quiet."""
        if not self.quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """Print also with --quiet: for what the command itself would have said."""
        for line in text.splitlines() or [""]:
            self._write(PREFIX + line.encode("utf-8", "replace") + b"\n")

    def _write(self, data: bytes) -> None:
        until = time.monotonic() + _PATIENCE_S
        while data and not self.lost:
            try:
                poll = select.poll()
                poll.register(self.fd, select.POLLOUT)
                events = poll.poll(max(0.0, until - time.monotonic()) * 1000)
                if not events or events[0][1] & (select.POLLNVAL | select.POLLERR):
                    self.lost = True
                    return
                data = data[os.write(self.fd, data[:_CHUNK]) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                self.lost = True
