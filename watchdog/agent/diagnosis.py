"""Have an incident and its run diagnosed by one child, and keep their verdicts in step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent.incident import Incident, read_verdict
from fabwatch.watchdog.agent.tasks import Task, Tasks, python

FILES = ("verdict.json", "summary.md")


class Diagnoses:
    """Starts `match --write`. ``columns``: of the terminal that the screen goes to."""

    def __init__(self, run_dir: Path, tasks: Tasks, log: Any) -> None:
        self.run_dir = run_dir
        self.tasks = tasks
        self.log = log
        self.match = python("-m", "fabwatch", "match")
        self.color = False
        self.columns: int | None = None
        self.signatures: str | None = None

    def start(self, incident: Incident | None, seconds: float, done: Callable[[], None]) -> Task:
        """Judge the run, and ``incident`` with it. Raises OSError."""
        words = [*self.match, "--write", "--run", str(self.run_dir)]
        if incident is not None:
            words += ["--incident", str(incident.folder)]
        if self.color:
            words.append("--color")
        extra = {"FABWATCH_SIGNATURES": self.signatures} if self.signatures else {}
        if self.columns:
            extra["COLUMNS"] = str(max(self.columns - len("fabwatch: "), 40))

        def ended(code: int | None, text: str) -> None:
            if code not in (0, 1, 3):
                self.log.error("diagnosis-failed", code=code, output=text[-2000:])
                if incident is not None and read_verdict(incident.folder) != incident.verdict:
                    incident.screen = ""  # it shows what is not thought any more
            elif incident is not None:
                incident.screen = text
            if code not in (0, 1, 3):
                self.failed(incident)
            done()

        return self.tasks.start("diagnosis", words, seconds, ended, output=True, extra=extra)

    def failed(self, incident: Incident | None) -> None:
        """The run's own verdict did not come in time: what its incident came to before stands."""
        for name in FILES:
            part = self.run_dir / f".{name}.{os.getpid()}.part"
            try:
                if incident is None or incident.resolved:
                    # Of what is over, the run must not say that it stands.
                    (self.run_dir / name).unlink(missing_ok=True)
                elif (incident.folder / name).exists():
                    shutil.copyfile(incident.folder / name, part)
                    part.replace(self.run_dir / name)
            except OSError as err:
                self.log.error("verdict-not-copied", name=name, error=str(err))
