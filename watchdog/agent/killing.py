"""--on-stall kill: end the launcher of a job that hangs, and nothing but the launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from fabwatch.watchdog.agent.incident import Incident
from fabwatch.watchdog.agent.watch import Watch

KILL_AFTER_S = 45.0
"""From SIGTERM to SIGKILL: torchrun gives its workers 30 s."""


class Killer:
    """Ends the process that the stub started, by SIGTERM and, if need be, by SIGKILL."""

    def __init__(self, watch: Watch, log: Any, say: Callable[[str], None]) -> None:
        self.watch = watch
        self.log = log
        self.say = say
        self.incident: Incident | None = None
        self.at = 0.0
        self.asked = False

    def wait_for(self, incident: Incident, at: float) -> None:
        """Act at ``at`` (monotonic seconds), unless the incident is over by then."""
        self.incident, self.at, self.asked = incident, at, False

    def tick(self, now: float) -> None:
        """Act if it is time."""
        incident, root = self.incident, self.watch.root
        if incident is None or now < self.at or root is None:
            return
        if incident.resolved or not self.watch.root_lives():
            self.incident = None
            return
        number = signal.SIGKILL if self.asked else signal.SIGTERM
        try:
            fd = os.pidfd_open(root)
            try:
                if self.watch.root_lives():
                    signal.pidfd_send_signal(fd, number)
                    self.say(f"--on-stall kill: sent {number.name} to pid {root}")
            finally:
                os.close(fd)
        except OSError as err:
            self.log.error("kill-failed", error=str(err))
        if self.asked:
            self.incident = None
        self.asked, self.at = True, now + KILL_AFTER_S
