"""What goes to the terminal: once, and taken back when the job ends well."""

from __future__ import annotations

from pathlib import Path

from fabwatch.watchdog.agent.incident import Incident, Verdict
from fabwatch.watchdog.agent.telling import Teller


def incident(folder: Path) -> Incident:
    found = Incident(folder, "stall", "", "", "steady", 0.0, 0.0, (0,), (), {})
    found.verdict = Verdict("diagnosed", "rank-host-stalled", "A rank stands", (0,))
    return found


def test_what_was_said_of_a_job_that_ends_well_is_taken_back(tmp_path: Path) -> None:
    said: list[str] = []
    teller, found = Teller(said.append), incident(tmp_path)
    teller.report(found, ending=False)
    teller.ended_well(found)
    assert len(said) == 2 and said[1].startswith("the job ended well after all")


def test_nothing_is_taken_back_when_nothing_was_said(tmp_path: Path) -> None:
    said: list[str] = []
    teller, found = Teller(said.append), incident(tmp_path)
    found.resolved = True
    teller.report(found, ending=False)
    teller.ended_well(found)
    assert said == []
