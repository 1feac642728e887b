"""The matcher: facts and a library in, graded matches out, best first.

Weights are decibans (10 x log10 of a likelihood ratio) and add up. Docs: docs/signatures.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fabwatch.signatures.model import (
    CONFIRMED_AT,
    LIKELY_AT,
    RULED_OUT_AT,
    Clue,
    Grade,
    Library,
    Signature,
)
from fabwatch.signatures.places import Block, Places
from fabwatch.signatures.versions import applies
from fabwatch.watchdog.evidence.facts import Fact, Facts, Where
from fabwatch.watchdog.evidence.known import Known


@dataclass(frozen=True, slots=True)
class Point:
    """One clue that was weighed: the fact, whether it is known, its worth and its citations."""

    clue: Clue
    known: Known
    worth: float
    cites: tuple[str, ...] = ()
    counted: bool = True  # False: a stronger clue of its group counts instead


@dataclass(frozen=True, slots=True)
class Match:
    """How one signature stands: grade, decibans, where, why, and which facts would tell more.

    ``asks`` are fact names, most telling first. ``untold`` are ids of look-alikes that have not
    been told apart. ``where`` is empty for a signature that blames no place.
    """

    signature: Signature
    grade: Grade
    decibans: float
    where: Where = field(default_factory=Where)
    points: tuple[Point, ...] = ()
    asks: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The signature's id."""
        return self.signature.id


def grade_of(decibans: float, required: Iterable[Known]) -> Grade:
    """The grade by the global thresholds; ``required`` is what is known of each required fact."""
    known = set(required)
    if Known.NO in known or decibans <= RULED_OUT_AT:
        return Grade.RULED_OUT
    if Known.UNKNOWN in known:
        return Grade.CANNOT_TELL
    if decibans >= CONFIRMED_AT:
        return Grade.CONFIRMED
    return Grade.LIKELY if decibans >= LIKELY_AT else Grade.POSSIBLE


def match(
    library: Library,
    facts: Facts,
    hosts: Mapping[int, str] | None = None,
    versions: Mapping[str, str] | None = None,
) -> list[Match]:
    """Every signature of the library against the facts, best first.

    ``hosts`` maps ranks to hosts. ``versions`` maps ``nccl``, ``torch``, ``arch`` to what was
    really loaded; a signature that does not apply to it is ruled out.
    """
    places = Places(facts, hosts or {})
    tried = {one.id: _tried(one, places, versions or {}) for one in library.signatures.values()}
    alone = {name: _best(blocks).grade for name, blocks in tried.items()}
    out = []
    for blocks in tried.values():
        capped = [_cap(one, alone, library, places) for one in blocks]
        out.append(_merged(_best(capped), capped))
    return _ranked(out, library)


# ---------------------------------------------------------------------- one signature


def _tried(signature: Signature, places: Places, versions: Mapping[str, str]) -> list[Match]:
    """The signature by its own clues at every block of places that may be to blame."""
    tried = [_weigh(signature, block, places) for block in _blocks(signature, places)]
    if applies(signature.applies_to, versions) is False:
        return [replace(one, grade=Grade.RULED_OUT, where=Where(), asks=()) for one in tried]
    return tried


def _best(tried: list[Match]) -> Match:
    return min(tried, key=lambda one: (one.grade.order, -one.decibans, one.where.ranks))


def _blocks(signature: Signature, places: Places) -> list[Block | None]:
    """The places that may be to blame, cut so that each clue is uniform within a block."""
    name = signature.blamed
    binding = [clue for clue in signature.clues if clue.name == name] if name else []
    facts = [fact for clue in binding for fact in places.matching(clue)]
    whole = places.whole(facts)
    if whole is None:
        return [None]
    blocks = [whole]
    apart = [fact for fact in facts if fact.where and not getattr(fact.where, whole.kind)]
    if whole.kind != "ranks" and (more := places.whole(apart)) is not None:
        blocks.append(more)  # what names only a link is not about the hosts that others name
    for clue in signature.clues:
        if name in (clue.name, clue.on):
            blocks = _cut(blocks, clue, places)
    for other in signature.confusable_with:
        for fact in other.tell_apart:
            blocks = _cut(blocks, Clue(fact), places)
    return list(blocks)


def _cut(blocks: list[Block], clue: Clue, places: Places) -> list[Block]:
    return [part for block in blocks for _, part in places.split(block, clue)]


def _weigh(signature: Signature, block: Block | None, places: Places) -> Match:
    bound: dict[str, Block | None] = {}
    if signature.blamed:
        bound[signature.blamed] = block
    points: list[Point] = []
    for clue in signature.clues:
        target = bound.get(clue.name or clue.on)
        known = places.anywhere(clue) if target is None else places.at(target, clue)
        if clue.name and clue.name not in bound:
            bound[clue.name] = places.whole(places.matching(clue))
        worth = {Known.YES: clue.present, Known.NO: clue.absent, Known.UNKNOWN: 0.0}[known]
        cited = places.cited(clue, target) if known is Known.YES else []
        cites = tuple(dict.fromkeys(cite for fact in cited for cite in fact.cites))
        points.append(Point(clue, known, worth, cites))
    points = _strongest(points)
    decibans = sum(point.worth for point in points if point.counted)
    grade = grade_of(decibans, _required(points))
    where = Where()
    if block is not None:
        named = [clue for clue in signature.clues if clue.name == signature.blamed]
        where = places.where(block, _facts_at(named, block, places))
    return Match(signature, grade, decibans, where, tuple(points), _open(points))


def _facts_at(clues: Iterable[Clue], block: Block, places: Places) -> list[Fact]:
    return [fact for clue in clues for fact in places.cited(clue, block)]


def _strongest(points: list[Point]) -> list[Point]:
    """Of every group only the point that weighs most, either way, counts; the first of equals."""
    best: dict[str, int] = {}
    for number, point in enumerate(points):
        group = point.clue.group
        if group and abs(point.worth) > abs(points[best.get(group, number)].worth):
            best[group] = number
        elif group:
            best.setdefault(group, number)
    return [
        replace(p, counted=not p.clue.group or best[p.clue.group] == n)
        for n, p in enumerate(points)
    ]


def _required(points: Iterable[Point]) -> list[Known]:
    """What is known of every required fact; required clues of one group are alternatives."""
    out: list[Known] = []
    groups: dict[str, set[Known]] = {}
    for point in points:
        if not point.clue.required:
            continue
        if point.clue.group:
            groups.setdefault(point.clue.group, set()).add(point.known)
        else:
            out.append(point.known)
    for known in groups.values():
        out.append(next(k for k in (Known.YES, Known.UNKNOWN, Known.NO) if k in known))
    return out


def _open(points: Iterable[Point]) -> tuple[str, ...]:
    """Names of facts that nobody could look for: required ones first, then by what they weigh."""
    unknown = [p.clue for p in points if p.known is Known.UNKNOWN]
    unknown.sort(key=lambda c: (not c.required, -max(abs(c.present), abs(c.absent))))
    return tuple(dict.fromkeys(clue.fact for clue in unknown))


def _merged(best: Match, tried: list[Match]) -> Match:
    """``best`` with the places of all blocks that stand as well as it does."""
    if not best.where:
        return best
    same = [
        one for one in tried if one.grade is best.grade or (one.grade.stands and best.grade.stands)
    ]
    where = Where(
        *(
            tuple(sorted({place for one in same for place in getattr(one.where, kind)}))
            for kind in ("ranks", "hosts", "devices", "links")
        )
    )
    points = tuple(
        replace(
            point,
            cites=tuple(dict.fromkeys(c for one in same for c in one.points[n].cites)),
        )
        if point.known is Known.YES
        else point
        for n, point in enumerate(best.points)
    )
    return replace(best, where=where, points=points)


# ---------------------------------------------------------------------- look-alikes


def _cap(one: Match, alone: Mapping[str, Grade], library: Library, places: Places) -> Match:
    """At most possible while a look-alike has not been told apart; its telling facts head asks."""
    if not one.grade.stands:
        return one
    untold: list[str] = []
    asks: list[str] = []
    block = places.block_of(one.where)
    for other in one.signature.confusable_with:
        if alone.get(other.id, Grade.RULED_OUT) is Grade.RULED_OUT:
            continue
        if one.id in library.ancestors(other.id):
            continue  # the general one holds whether or not the specific one does
        if not any(places.told(fact, block) for fact in other.tell_apart):
            untold.append(other.id)
            asks += other.tell_apart
    if one.signature.names_cause and not untold:
        return one
    asks = list(dict.fromkeys([*asks, *one.asks]))
    return replace(one, grade=Grade.POSSIBLE, untold=tuple(untold), asks=tuple(asks))


# ---------------------------------------------------------------------- order


def _ranked(matches: list[Match], library: Library) -> list[Match]:
    """By grade and decibans, but causes above what they explain, specific above general."""
    left = sorted(matches, key=lambda one: (one.grade.order, -one.decibans, one.id))
    standing = {one.id for one in left if one.grade.stands}
    out: list[Match] = []
    while left:
        ids = {one.id for one in left} & standing
        first = next((one for one in left if not above(one, ids, library)), left[0])
        left.remove(first)
        out.append(first)
    return out


def above(one: Match, others: Iterable[str], library: Library) -> list[str]:
    """Which of ``others`` are a cause of ``one``, or a more specific form of it."""
    found = []
    for name in others:
        other = library.signatures.get(name)
        if other is None or name == one.id:
            continue
        if one.id in other.explains or one.id in library.ancestors(name):
            found.append(name)
    return found
