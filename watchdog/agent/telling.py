"""Say what was found once, and again only when the diagnosis has changed its mind."""

from __future__ import annotations

import time
from collections.abc import Callable

from fabwatch.watchdog.agent.incident import RESTARTED, Incident

EXIT_SAY_S = 8.0
"""A job that is ending is told of at its end, with everything that is known then, or so late."""


class Teller:
    """What goes to the terminal, through ``say``."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.on_diagnosed: Callable[[Incident], None] = lambda _: None

    def report(self, incident: Incident, ending: bool) -> None:
        """After a diagnosis. ``ending``: a rank of this attempt has ended."""
        verdict = incident.verdict
        if verdict is None or not verdict.diagnosed:
            return
        if incident.resolved and incident.resolved_by != RESTARTED:
            return
        if incident.said is None:
            self.on_diagnosed(incident)
        if ending and time.time() - incident.detected < EXIT_SAY_S:
            return
        if not self._said(incident):
            self._tell(incident)

    def belated(self, incident: Incident, *, at_once: bool = False) -> None:
        """Say what was held back: after a while, or ``at_once`` if it is history now."""
        verdict = incident.verdict
        if incident.said is not None or verdict is None:
            return
        if at_once or (verdict.diagnosed and time.time() - incident.detected > EXIT_SAY_S):
            incident.said = verdict
            if verdict.diagnosed:
                self._tell(incident)

    def goes_on(self, incident: Incident, seconds: float) -> None:
        """The job moves again, and something else was said before."""
        if incident.said is not None:
            self.say(f"the job moves again after {seconds:.0f} s; evidence: {incident.folder}")

    def ended_well(self, incident: Incident) -> None:
        """The job has ended well although something was said of it."""
        if incident.said is not None:
            self.say(f"the job ended well after all; evidence: {incident.folder}")

    def last(self, incident: Incident) -> None:
        """The job has ended and the incident stands."""
        verdict = incident.verdict
        if verdict is not None and self._said(incident):
            what = verdict.title or verdict.signature
            self.say(f"as said before: {what}; evidence: {incident.folder}")
        else:
            self.say(incident.screen or f"no verdict in time; evidence: {incident.folder}")

    def _said(self, incident: Incident) -> bool:
        said, now = incident.said, incident.verdict
        return (
            said is not None
            and now is not None
            and (said.signature, said.ranks) == (now.signature, now.ranks)
        )

    def _tell(self, incident: Incident) -> None:
        incident.said = verdict = incident.verdict
        if verdict is not None:
            short = f"{verdict.title} (rank {verdict.ranks}): {incident.folder}"
            self.say(incident.screen or short)
