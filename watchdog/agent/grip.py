"""Keep the launcher from ending the ranks that are left, and say where that did not work."""

from __future__ import annotations

from typing import Any

from fabwatch.watchdog.agent.hold import LIMIT_S, Answer, Holder
from fabwatch.watchdog.agent.watch import Watch


class Grip:
    """The process that holds, and what it holds. Without one, nothing is ever held."""

    def __init__(self, holder: Holder | None, watch: Watch, log: Any) -> None:
        self.holder = holder
        self.watch = watch
        self.log = log
        self.held: int | None = None  # pid
        if holder is not None:
            watch.finder.skip.add(holder.pid)

    def hold(self) -> None:
        """Hold the launcher, if it has ranks left."""
        launcher = self.watch.launcher
        if self.holder is None or launcher is None or not self.watch.ranks:
            return
        if self.holder.hold(launcher, LIMIT_S):
            self.held = launcher

    def release(self) -> None:
        """Let the launcher go on."""
        if self.held is not None and self.holder is not None:
            self.log.info("let-go", pid=self.held)
            self.holder.release()
            self.held = None

    def refusals(self) -> list[Answer]:
        """Hear from the process that holds; what it could not hold since the last call."""
        answers = self.holder.answers() if self.holder is not None else []
        for answer in answers:
            self.log.info("hold", what=answer.what, pid=answer.pid, error=answer.error)
        return [answer for answer in answers if answer.what == "refused"]

    def renew(self) -> None:
        """The process that holds is gone: what it held goes on; get another."""
        self.close()
        try:
            self.holder = Holder()
            self.watch.finder.skip.add(self.holder.pid)
        except OSError as err:
            self.log.error("no-holder", error=str(err))

    def close(self) -> None:
        """End the process that holds."""
        old, self.holder = self.holder, None
        if old is not None:
            old.close()
