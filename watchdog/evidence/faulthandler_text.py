"""Thread stacks as Python's faulthandler and torch's debug server print them.

Example::

    Thread 0x00007f2b (most recent call first):
      File "/job/train.py", line 35 in next_batch
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.observations import Frame, ThreadStack

THREAD = re.compile(
    r"^(?P<current>Current thread|Thread) (?P<tid>0x[0-9a-fA-F]{1,16})"
    r"(?: \[(?P<name>[^\]]{0,100})\])? ?\(most recent call first\):"
)
FRAME = re.compile(
    r'^\s+File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}) in (?P<function>.+?)\s*$'
)
MAX_THREADS = 20_000


class ThreadStacks:
    """Feed it lines of one process; ``threads`` holds what was seen, ``open`` while inside one."""

    def __init__(self) -> None:
        self.threads: list[ThreadStack] = []
        self._head: tuple[str, int, bool, int] | None = None
        self._frames: list[Frame] = []
        self.last = 0

    @property
    def open(self) -> bool:
        """True inside a thread's stack."""
        return self._head is not None

    def feed(self, body: str, number: int) -> bool:
        """True if the line belonged to a stack."""
        if match := THREAD.match(body):
            self.close()
            self.last = number
            self._head = (
                match["name"] or "",
                int(match["tid"], 16),
                match["current"] == "Current thread",
                number,
            )
            return True
        if self._head is None:
            return False
        if match := FRAME.match(body):
            self.last = number
            if len(self._frames) < 500:
                self._frames.append(
                    Frame(match["function"][:400], match["file"], int(match["line"]))
                )
            return True
        if body.strip() in ("...", "<no Python frame>", "Garbage-collecting"):
            return True
        self.close()
        return False

    def close(self) -> None:
        """End the thread that is open."""
        if self._head is not None and len(self.threads) < MAX_THREADS:
            name, _, current, number = self._head
            # The identifier is a pthread address, not a kernel thread id.
            self.threads.append(
                ThreadStack(name, None, current, current, tuple(self._frames), number)
            )
        self._head = None
        self._frames = []

    def finish(self) -> tuple[ThreadStack, ...]:
        """All threads. Python prints the main thread last, which gets its name if it has none."""
        self.close()
        if self.threads and not any(t.name == "MainThread" for t in self.threads):
            last = self.threads[-1]
            self.threads[-1] = ThreadStack(
                "MainThread", last.os_tid, last.active, last.gil, last.frames, last.line
            )
        return tuple(self.threads)
