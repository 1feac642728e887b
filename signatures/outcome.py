"""Decides what kind of verdict it is: diagnosed, waiting, healthy or cannot-tell."""

from __future__ import annotations

from fabwatch.signatures.matching import Match
from fabwatch.signatures.situation import AT_ONCE, WRONG, Situation
from fabwatch.signatures.verdict import Outcome, Symptom
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import BASE

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
        # Nobody waits any more once somebody has ended the job: was it a hang? Nobody can tell.
        return "cannot-tell" if it.stall is not None and it.stall.ended else "waiting"
    return "healthy" if it.looked else "cannot-tell"


def failing(it: Situation) -> bool:
    """Whether something is wrong, whatever it is."""
    if it.any_yes(WRONG):
        return True
    if it.pending and it.exceeded and not it.advancing:
        return True
    return any(
        m.signature.symptom in ("slowdown", "wrong-numbers") or _stated(m) for m in it.standing
    )


def _stated(one: Match) -> bool:
    """Whether a line states what the signature requires: then nobody needs to have waited."""
    return any(
        p.clue.required and p.known is Known.YES and p.clue.fact not in BASE for p in one.points
    )


def symptom_of(it: Situation, outcome: Outcome) -> Symptom:
    """What the job's owner sees."""
    if outcome in ("healthy", "waiting"):
        return "none"
    standing = it.standing
    if outcome == "diagnosed" and standing[0].signature.symptom != "hang":
        return _symptom(standing[0].signature.symptom)
    timed_out = it.yes("timeout.reported", "wait.exceeded")
    if outcome == "diagnosed" and not it.roots and not timed_out and _mismatched(standing[0]):
        return "wrong-numbers"  # it differed and went on
    if it.pending or timed_out:
        return "hang"
    if it.yes(*_DEATHS):
        return "crash"
    return "hang" if outcome == "diagnosed" else "none"


def _mismatched(one: Match) -> bool:
    return any(p.clue.fact in _MISMATCHES and p.known is Known.YES for p in one.points)


def _symptom(text: str) -> Symptom:
    known: dict[str, Symptom] = {
        "crash": "crash",
        "slowdown": "slowdown",
        "wrong-numbers": "wrong-numbers",
    }
    return known.get(text, "hang")
