"""``python -m fabwatch.watchdog.agent RUN_DIR FD``: watch one run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
from pathlib import Path


def _leave_if_over(line: socket.socket) -> None:
    """End at once if the job ends while we are being imported: there is nothing to watch then.

    Without this a job of a moment would have to wait for a second of imports.
    """

    def look(_number: int = 0, _frame: object = None) -> None:
        try:
            waiting = line.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:
            return
        if b'"job_ended"' in waiting:
            with contextlib.suppress(OSError):
                line.send(b'{"done": true}\n', socket.MSG_DONTWAIT)
            os._exit(0)

    signal.signal(signal.SIGIO, look)
    fcntl.fcntl(line, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) | os.O_ASYNC)
    look()


def _stay(line: socket.socket) -> None:
    """From here on the loop hears of the end."""
    fcntl.fcntl(line, fcntl.F_SETFL, fcntl.fcntl(line, fcntl.F_GETFL) & ~os.O_ASYNC)
    signal.signal(signal.SIGIO, signal.SIG_IGN)


def _may_open_many() -> None:
    """A descriptor for each rank, and more: take what the system allows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(argv: list[str]) -> int:
    """Exit status: 0 done, 2 usage."""
    if len(argv) != 2 or not argv[1].isdigit():
        print("usage: python -m fabwatch.watchdog.agent RUN_DIR FD", file=sys.stderr)
        return 2
    run_dir = Path(argv[0]).absolute()
    if not run_dir.is_dir():
        print(f"fabwatch agent: {run_dir}: no such directory", file=sys.stderr)
        return 2
    try:
        line = socket.socket(fileno=int(argv[1]))
    except OSError as err:
        print(f"fabwatch agent: descriptor {argv[1]}: {err.strerror}", file=sys.stderr)
        return 2
    line.set_inheritable(False)
    _may_open_many()
    _leave_if_over(line)
    # Before anything large is imported: the process that holds launchers stays small.
    from fabwatch.watchdog.agent.hold import Holder

    holder: Holder | None = None
    try:
        holder = Holder()
    except OSError as err:
        print(f"fabwatch agent: launchers cannot be held: {err}", file=sys.stderr)
    from fabwatch.watchdog.agent.log import open_log
    from fabwatch.watchdog.agent.loop import Agent

    _stay(line)
    log = open_log(run_dir / "agent.log")
    agent = Agent(run_dir, line, holder, log)
    try:
        agent.run()
    except Exception:
        log.exception("agent-failed")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
