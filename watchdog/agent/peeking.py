"""Learn the job's own timeout while everybody is well, from a rank that communicates."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent.tasks import Tasks, python
from fabwatch.watchdog.progress.monitor import Monitor

TIMES, EVERY_S, DEADLINE_S = 3, 5.0, 6.0
"""How often a rank is asked, once it has begun to communicate."""


class Peeks:
    """Asks by children: a rank may accept and never answer."""

    def __init__(self, sockets: str, tasks: Tasks, log: Any) -> None:
        self.sockets = sockets
        self.tasks = tasks
        self.log = log
        self.left = TIMES
        self.at = 0.0

    def tick(self, monitor: Monitor, now: float) -> None:
        """Ask the first rank that communicates, if nobody has told the timeout yet."""
        if not self.left or now < self.at or monitor.timeout is not None or not self.sockets:
            return
        asked = next(
            (
                track
                for _, track in sorted(monitor.ranks.items())
                if track.counted is not None and not track.exiting
            ),
            None,
        )
        if asked is None:
            return
        self.left -= 1
        self.at = now + EVERY_S

        def learnt(code: int | None, text: str) -> None:
            with contextlib.suppress(ValueError):
                if code == 0 and monitor.timeout is None:
                    monitor.timeout = float(text)
                    self.log.info("timeout", seconds=monitor.timeout)

        path = Path(self.sockets) / f"w{asked.pid}.sock"
        with contextlib.suppress(OSError):
            words = python("-m", "fabwatch.watchdog.agent.peek", str(path))
            self.tasks.start("peek", words, DEADLINE_S, learnt, output=True)
