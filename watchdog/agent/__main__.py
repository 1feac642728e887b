"""``python -m fabwatch.watchdog.agent RUN_DIR FD``: watch one run."""

from __future__ import annotations

import socket
import sys
from pathlib import Path


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
    # Before anything large is imported: the process that holds launchers stays small.
    from fabwatch.watchdog.agent.hold import Holder

    holder: Holder | None = None
    try:
        holder = Holder()
    except OSError as err:
        print(f"fabwatch agent: launchers cannot be held: {err}", file=sys.stderr)
    from fabwatch.watchdog.agent.log import open_log
    from fabwatch.watchdog.agent.loop import Agent

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
