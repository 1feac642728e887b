"""Decides what kind of verdict it is: diagnosed, waiting, healthy or cannot-tell."""

from __future__ import annotations

from fabwatch.signatures.situation import AT_ONCE, WRONG, Situation
from fabwatch.signatures.verdict import Outcome, Symptom

_DEATHS = (
    "process.exited",
    "process.killed",
    "process.oom-killed",
    "process.segfaulted",
    "process.aborted",
    "process.terminated",
    "exception.raised",
)
_MISMATCHES = (
    "collective.type-mismatched",
    "collective.size-mismatched",
    "collective.dtype-mismatched",
    "collective.root-mismatched",
)


def outcome_of(it: Situation) -> Outcome:
    """The outcome, by CONTRACT's 'When waiting becomes a failure'.

    A wait is a failure at once with positive evidence, else when it is exceeded. A diagnosis
    needs a likely or confirmed signature that names a cause.
    """
    if it.stall is not None and it.stall.resolved and not it.any_yes(AT_ONCE):
        return "healthy"
    if failing(it):
        return "diagnosed" if it.standing else "cannot-tell"
    if it.pending and not it.advancing:
        return "waiting"
    return "healthy" if it.looked else "cannot-tell"


def failing(it: Situation) -> bool:
    """Whether something is wrong, whatever it is."""
    if it.any_yes(WRONG):
        return True
    if it.pending and it.exceeded and not it.advancing:
        return True
    return any(m.signature.symptom in ("slowdown", "wrong-numbers") for m in it.standing)


def symptom_of(it: Situation, outcome: Outcome) -> Symptom:
    """What the job's owner sees."""
    if outcome in ("healthy", "waiting"):
        return "none"
    standing = it.standing
    if outcome == "diagnosed" and standing[0].signature.symptom != "hang":
        return _symptom(standing[0].signature.symptom)
    if it.pending or it.yes("timeout.reported"):
        return "hang"
    if it.yes(*_DEATHS):
        return "crash"
    if it.yes(*_MISMATCHES):
        return "wrong-numbers"
    return "hang" if outcome == "diagnosed" else "none"


def _symptom(text: str) -> Symptom:
    known: dict[str, Symptom] = {
        "crash": "crash",
        "slowdown": "slowdown",
        "wrong-numbers": "wrong-numbers",
    }
    return known.get(text, "hang")
