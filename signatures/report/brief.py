"""One line for a verdict: for scripts, chats and comparisons."""

from __future__ import annotations

from fabwatch.signatures.asking import ranks_text
from fabwatch.signatures.report.text import clean, listed
from fabwatch.signatures.verdict import Verdict


def brief(verdict: Verdict) -> str:
    """``diagnosed, hang: process-stopped-sigstop (confirmed); rank 1 on n1; fabric acquitted``.

    Weights and places of evidence are left out: the line changes when the answer does.
    """
    said = verdict.outcome.replace("-", " ")
    if verdict.symptom != "none":
        said += f", {verdict.symptom.replace('-', ' ')}"
    if verdict.outcome in ("diagnosed", "cannot-tell") and verdict.best is not None:
        said += f": {verdict.best.id} ({verdict.best.grade})"
    who = verdict.culprits
    places = [ranks_text(who.ranks)] if who.ranks else []
    if who.hosts:
        places.append(f"on {listed(who.hosts, 3)}" if who.ranks else f"host {listed(who.hosts, 3)}")
    if who.devices:
        places.append(f"device {listed(who.devices, 3)}")
    if who.links:
        places.append(f"link {listed(who.links, 3)}")
    parts = [said, *([" ".join(places)] if places else [])]
    if verdict.outcome != "healthy":
        parts.append(f"fabric {verdict.fabric}")
    return clean("; ".join(parts))
