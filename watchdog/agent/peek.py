"""``python -m fabwatch.watchdog.agent.peek SOCKET``: ask one rank for its groups' shortest timeout.

A child of the agent, because a rank may accept and never answer. Prints seconds, or nothing.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from fabwatch.watchdog.agent.incident import shortest_timeout
from fabwatch.watchdog.capture.unixhttp import Unanswered, post

HANDLERS = ("dump_nccl_trace_json", "fr_trace_json")
SECONDS = 3.0


def main(argv: list[str]) -> int:
    """Exit status: 0 found, 1 not found, 2 usage."""
    if len(argv) != 1:
        print("usage: python -m fabwatch.watchdog.agent.peek SOCKET", file=sys.stderr)
        return 2
    found = []
    until = time.monotonic() + SECONDS
    for handler in HANDLERS:
        try:
            answer = post(Path(argv[0]), f"/handler/{handler}", until=until, keep=1 << 18)
        except Unanswered:
            continue
        seconds = shortest_timeout(answer.head)
        if answer.status == 200 and seconds is not None:
            found.append(seconds)
    if not found:
        return 1
    print(min(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
