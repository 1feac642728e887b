"""Finds the one or two facts that would tell the best candidates apart, and how to fetch them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fabwatch.signatures.asking import ask
from fabwatch.signatures.matching import Match
from fabwatch.signatures.model import Library
from fabwatch.watchdog.evidence.facts import Facts
from fabwatch.watchdog.evidence.known import Known

MOST = 2
"""How many facts are named."""
LEAST = 6.0
"""Decibans by which an answer must move two candidates against each other to be worth a walk."""
_LIFTS = 20.0
"""What lifting a cap is worth: the fact was declared to tell the two apart."""


@dataclass(frozen=True, slots=True)
class Separator:
    """A fact that nobody could look for, and what each answer would mean.

    ``yes`` and ``no`` are the ids that each answer favours, "" where it favours neither; ``text``
    says how to fetch it, and ``worth`` is in decibans.
    """

    fact: str
    yes: str
    no: str
    worth: float
    text: str

    def __str__(self) -> str:
        answers = [f"{word} speaks for {name}" for word, name in (("yes", self.yes),
                   ("no", self.no)) if name]  # fmt: skip
        return f"{self.text}; {', '.join(answers)}" if answers else self.text


def separators(found: Sequence[Match], facts: Facts, library: Library) -> list[Separator]:
    """Facts that separate the first of ``found`` from its nearest rival, most telling first.

    A consequence or a more general form of the first is no rival: both may hold.
    """
    if not found:
        return []
    first = found[0]
    rival = next((one for one in found[1:] if not _akin(first, one, library)), None)
    if rival is None:
        return []
    ranks = set(first.where.ranks) | set(rival.where.ranks)
    told = _told_apart(first, rival)
    out = []
    for name in dict.fromkeys([*told, *_unknown(first), *_unknown(rival)]):
        one = _separator(name, first, rival, name in told)
        if one.worth >= LEAST and (text := ask(name, facts, ranks)):
            out.append(Separator(one.fact, one.yes, one.no, one.worth, text))
    out.sort(key=lambda one: -one.worth)
    return out[:MOST]


def _akin(one: Match, other: Match, library: Library) -> bool:
    return (
        other.id in one.signature.explains
        or one.id in other.signature.explains
        or other.id in library.ancestors(one.id)
        or one.id in library.ancestors(other.id)
    )


def _told_apart(one: Match, other: Match) -> list[str]:
    """Facts declared to tell the two apart, if that is still open on either side."""
    if other.id not in one.untold and one.id not in other.untold:
        return []
    return [
        name
        for a, b in ((one, other), (other, one))
        for alike in a.signature.confusable_with
        if alike.id == b.id
        for name in alike.tell_apart
    ]


def _unknown(one: Match) -> Iterable[str]:
    return (point.clue.fact for point in one.points if point.known is Known.UNKNOWN)


def _separator(name: str, first: Match, rival: Match, told: bool) -> Separator:
    """How far each answer would move the two against each other."""
    if_yes = _moves(name, first, yes=True) - _moves(name, rival, yes=True)
    if_no = _moves(name, first, yes=False) - _moves(name, rival, yes=False)

    def favoured(by: float) -> str:
        if abs(by) < 1:
            return ""
        return first.id if by > 0 else rival.id

    worth = abs(if_yes - if_no) + (_LIFTS if told else 0.0)
    return Separator(name, favoured(if_yes), favoured(if_no), worth, "")


def _moves(name: str, one: Match, *, yes: bool) -> float:
    """Decibans that the answer would add; a required fact that is not there rules out."""
    total = 0.0
    for point in one.points:
        if point.clue.fact != name or point.known is not Known.UNKNOWN:
            continue
        total += point.clue.present if yes else point.clue.absent
        if point.clue.required and not yes and not point.clue.group:
            total -= _LIFTS
    return total
