"""Runs the inline cases of signatures: each against the whole library, look-alikes included."""

from __future__ import annotations

from collections.abc import Iterator

from fabwatch.signatures.matching import Match, match
from fabwatch.signatures.model import Case, Library, Signature
from fabwatch.watchdog.evidence.facts import EVERYONE, Facts, Where
from fabwatch.watchdog.evidence.vocabulary import SOURCES


def facts_of(case: Case) -> Facts:
    """The facts of a case: everything was looked at, except what ``unknown`` names."""
    facts = Facts(unknowable=set(case.unknown))
    facts.add(*case.facts)
    for source in SOURCES:
        facts.look(source, EVERYONE)
    # Sources that cannot deny a fact leave it unknown; a case means no when it says nothing.
    return facts


def matches(case: Case, library: Library) -> list[Match]:
    """All matches of the library on a case, best first."""
    return match(library, facts_of(case), dict(case.hosts))


def failures(library: Library) -> Iterator[str]:
    """One located line for each case that does not come out as it expects."""
    for signature in library.signatures.values():
        for case in signature.cases:
            yield from failures_of(signature, case, library)


def failures_of(signature: Signature, case: Case, library: Library) -> Iterator[str]:
    """What is wrong with one case: the grade, or the places."""
    here = f"{signature.path}:{case.line}: {signature.id}: {case.name}"
    found = next(one for one in matches(case, library) if one.id == signature.id)
    if found.grade is not case.expect:
        yield (
            f"{here}: expected {case.expect.value}, came out {found.grade.value} "
            f"({found.decibans:g} decibans; not told apart: {', '.join(found.untold) or 'none'})"
        )
    if case.where is not None and _places(found.where, case.where) != case.where:
        yield f"{here}: expected {case.where}, came out {found.where}"


def _places(found: Where, wanted: Where) -> Where:
    """``found`` in the kinds of place that the case names; the others are left open."""
    return Where(
        found.ranks if wanted.ranks else (),
        found.hosts if wanted.hosts else (),
        found.devices if wanted.devices else (),
        found.links if wanted.links else (),
    )
