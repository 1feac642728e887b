"""Watch an injector from a session of one's own: heal when it dies, or at the time limit.

    python -m fabwatch.chaos.guardian JOURNAL PIDFD PIPE DEADLINE_S

PIDFD is the injector's; PIPE a pipe whose other end only the injector holds, and into which the
guardian's readiness goes the other way round: one byte on standard output. It ignores every
signal that can be ignored until the journal is closed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

from fabwatch.chaos import journal
from fabwatch.chaos.healing import heal

KEEP_TRYING_S = 60.0
"""What could not be healed is tried again for so long; then it is left to the next run."""


def watch(path: Path, pidfd: int, pipe: int, deadline_s: float) -> int:
    """Wait for the first of: journal closed, injector dead, time over; then heal. Exit code."""
    until = time.monotonic() + deadline_s
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.register(pipe, select.POLLIN | select.POLLHUP)
    events = poll.poll(max(0, int((until - time.monotonic()) * 1000)))
    why = "guardian: the time limit" if not events else "guardian: the injector ended"
    give_up = time.monotonic() + KEEP_TRYING_S
    while True:
        # An injector that ended properly has closed the journal before it closed the pipe.
        if heal(path, why).known:
            return 0
        if time.monotonic() > give_up:
            return 1
        time.sleep(1.0)


def main(argv: list[str]) -> int:
    """Start."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    path, pidfd, pipe, deadline = Path(argv[0]), int(argv[1]), int(argv[2]), float(argv[3])
    # Everything that healing needs is loaded now, while memory and disk are as they should be.
    from fabwatch.chaos.faults import find

    intent = journal.read(path).intent
    if intent is not None:
        find(intent.text("fault"))
    os.write(1, b".")
    os.close(1)
    return watch(path, pidfd, pipe, deadline)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
