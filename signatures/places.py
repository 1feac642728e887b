"""Where facts hold: three-valued answers for sets of ranks, hosts, devices or links.

All answers are set operations, never loops over pairs, so that a thousand ranks cost little.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.signatures.model import Clue
from fabwatch.watchdog.evidence.facts import EVERYONE, Fact, Facts, Scalar, Where
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

KINDS = ("ranks", "hosts", "devices", "links")


@dataclass(frozen=True, slots=True)
class Block:
    """Some places of one kind about which every clue says the same."""

    kind: str
    members: frozenset[int | str]


@dataclass(slots=True)
class Places:
    """The facts of one diagnosis, indexed; ``hosts`` maps a rank to its host where known."""

    facts: Facts
    hosts: Mapping[int, str] = field(default_factory=dict)
    _by_name: dict[str, list[Fact]] = field(default_factory=dict, init=False)
    _denied: dict[str, frozenset[int]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for one in self.facts:
            self._by_name.setdefault(one.name, []).append(one)

    # ------------------------------------------------------------------ facts of a clue

    def matching(self, clue: Clue) -> list[Fact]:
        """Facts of that name that have one of the wanted values for every wanted detail."""
        return [f for f in self._by_name.get(clue.fact, []) if _fits(f, clue) is True]

    def _vague(self, clue: Clue) -> list[Fact]:
        """Facts of that name that do not say what the clue wants to know."""
        return [f for f in self._by_name.get(clue.fact, []) if _fits(f, clue) is None]

    def anywhere(self, clue: Clue) -> Known:
        """Whether the fact holds anywhere in the job."""
        if self.matching(clue):
            return Known.YES
        if self._vague(clue) or clue.fact in self.facts.unknowable:
            return Known.UNKNOWN
        if self._by_name.get(clue.fact):
            return Known.NO
        return self.facts.known(clue.fact)

    # ------------------------------------------------------------------ facts at places

    def whole(self, facts: Iterable[Fact]) -> Block | None:
        """All places of ``facts`` as one block, of the first kind that any of them has."""
        facts = list(facts)
        for kind in KINDS:
            members = {m for f in facts for m in getattr(f.where, kind)}
            if kind == "ranks" and members:
                wanted = {h for f in facts if not f.where.ranks for h in f.where.hosts}
                members |= {r for r, host in self.hosts.items() if host in wanted}
            if members:
                return Block(kind, frozenset(members))
        return None

    def split(self, block: Block, clue: Clue) -> list[tuple[Known, Block]]:
        """``block`` in at most three parts: where the clue's fact holds, does not, is unknown."""
        yes = self._covered(self.matching(clue), block)
        rest = block.members - yes
        maybe = self._covered(self._vague(clue), block) & rest
        if self._placeless(clue):
            maybe = rest
        no = (rest - maybe) & self._deniable(clue.fact, block)
        parts = ((Known.YES, yes), (Known.NO, no), (Known.UNKNOWN, rest - no))
        return [(known, Block(block.kind, frozenset(part))) for known, part in parts if part]

    def at(self, block: Block, clue: Clue) -> Known:
        """YES if the fact holds at every place of ``block``, NO if it is denied at any place."""
        known = {one for one, _ in self.split(block, clue)}
        if known == {Known.YES}:
            return Known.YES
        return Known.NO if Known.NO in known else Known.UNKNOWN

    def told(self, name: str, block: Block | None) -> bool:
        """Whether the fact is known, yes or no, at every place of ``block`` (anywhere: None)."""
        clue = Clue(fact=name)
        if block is None:
            return self.anywhere(clue) is not Known.UNKNOWN
        return all(known is not Known.UNKNOWN for known, _ in self.split(block, clue))

    def cited(self, clue: Clue, block: Block | None) -> list[Fact]:
        """The facts that make the clue true at ``block`` (anywhere: None)."""
        found = self.matching(clue)
        if block is None:
            return found
        return [f for f in found if self._covered([f], block)]

    def where(self, block: Block, facts: Iterable[Fact]) -> Where:
        """The places of ``block``, with what ``facts`` add in other kinds of place."""
        places: dict[str, set[int | str]] = {kind: set() for kind in KINDS}
        for one in facts:
            for kind in KINDS:
                places[kind] |= set(getattr(one.where, kind))
        places[block.kind] = set(block.members)
        return Where(
            tuple(sorted(r for r in places["ranks"] if isinstance(r, int))),
            *(tuple(sorted(str(one) for one in places[kind])) for kind in KINDS[1:]),
        )

    @staticmethod
    def block_of(where: Where) -> Block | None:
        """The places of ``where`` as a block of the first kind that it has, None if empty."""
        for kind in KINDS:
            if members := getattr(where, kind):
                return Block(kind, frozenset(members))
        return None

    def _covered(self, facts: Iterable[Fact], block: Block) -> frozenset[int | str]:
        out: set[int | str] = set()
        for one in facts:
            own: set[int | str] = set(getattr(one.where, block.kind))
            if not own and block.kind == "ranks" and one.where.hosts:
                hosts = set(one.where.hosts)
                own = {r for r in block.members if self.hosts.get(int(r)) in hosts}
            elif not own and block.kind == "hosts" and one.where.ranks:
                own = {self.hosts[r] for r in one.where.ranks if r in self.hosts}
            out |= own & block.members
        return frozenset(out)

    def _placeless(self, clue: Clue) -> bool:
        return any(not f.where for f in self.matching(clue))

    def _deniable(self, name: str, block: Block) -> frozenset[int | str]:
        """Places for which a source that can deny the fact was read."""
        if name in self.facts.denied:
            return frozenset(block.members)
        if name in self.facts.unknowable:
            return frozenset()
        if name not in self._denied:
            looked = (self.facts.looked.get(s, set()) for s in VOCABULARY[name].denied_by)
            self._denied[name] = frozenset(set().union(*looked))
        read = self._denied[name]
        if EVERYONE in read:
            return frozenset(block.members)
        if block.kind == "ranks":
            return frozenset(block.members & read)
        if block.kind == "hosts":
            return frozenset(self.hosts[r] for r in read if r in self.hosts) & block.members
        return frozenset()


def text_of(value: Scalar) -> str:
    """A detail's value as a signature writes it: ``true``, ``1``, ``cgroup``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fits(fact: Fact, clue: Clue) -> bool | None:
    """Whether the fact's details are what the clue wants; None when it does not say."""
    unsaid = False
    for key, wanted in clue.detail:
        if key == "ranks":
            if " ".join(map(str, fact.where.ranks)) not in wanted:
                return False
            continue
        value = fact.get(key)
        if value is None:
            unsaid = True
        elif text_of(value) not in wanted and not any(_compares(value, one) for one in wanted):
            return False
    return None if unsaid else True


_BOUND = re.compile(r"(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)")


def _compares(value: Scalar, wanted: str) -> bool:
    """Whether ``wanted`` is a bound such as ``>=3`` and ``value`` a number that keeps it."""
    match = _BOUND.fullmatch(wanted)
    if match is None:
        return False
    try:
        have, limit = float(text_of(value)), float(match[2])
    except ValueError:
        return False
    sign = match[1]
    return (
        (have > limit and ">" in sign)
        or (have < limit and "<" in sign)
        or (have == limit and "=" in sign)
    )
