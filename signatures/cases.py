"""Runs the inline cases of signatures: each against the whole library, look-alikes included."""

from __future__ import annotations

from collections.abc import Iterator

from fabwatch.signatures.matching import Match, match
from fabwatch.signatures.model import Case, Library, Signature
from fabwatch.watchdog.evidence.facts import EVERYONE, Facts, Where
from fabwatch.watchdog.evidence.vocabulary import SOURCES


def facts_of(case: Case) -> Facts:
    """The facts of a case: everything was looked at, except what ``unknown`` names.

    A fact that no source can deny (``Entry.denied_by`` is empty) stays unknown all the same.
    """
    facts = Facts(unknowable=set(case.unknown))
    facts.add(*case.facts)
    for source in SOURCES:
        facts.look(source, EVERYONE)
    return facts


def matches(case: Case, library: Library) -> list[Match]:
    """All matches of the library on a case, best first."""
    return match(library, facts_of(case), dict(case.hosts))


def failures(library: Library) -> Iterator[str]:
    """One located line for each case that does not come out as it expects."""
    for signature in library.signatures.values():
        for case in signature.cases:
            if problem := run_case(signature, case, library):
                yield f"{signature.path}:{case.line}: {signature.id}: {case.name}: {problem}"


def run_case(signature: Signature, case: Case, library: Library) -> str:
    """What is wrong with one case, the grade or the places; "" if it comes out as it should."""
    near = _near(signature, library)
    found = next(one for one in matches(case, near) if one.id == signature.id)
    if found.grade is not case.expect:
        return (
            f"expected {case.expect.value}, came out {found.grade.value} "
            f"({found.decibans:g} decibans; not told apart: {', '.join(found.untold) or 'none'})"
        )
    if case.where is not None and _places(found.where, case.where) != case.where:
        return f"expected {case.where}, came out {found.where}"
    return ""


def _near(signature: Signature, library: Library) -> Library:
    """The part of the library that can change how the signature comes out."""
    names = {signature.id, *(other.id for other in signature.confusable_with)}
    for name in list(names):
        names |= library.ancestors(name)
    known = library.signatures
    return Library({name: known[name] for name in sorted(names) if name in known})


def _places(found: Where, wanted: Where) -> Where:
    """``found`` in the kinds of place that the case names; the others are left open."""
    return Where(
        found.ranks if wanted.ranks else (),
        found.hosts if wanted.hosts else (),
        found.devices if wanted.devices else (),
        found.links if wanted.links else (),
    )
