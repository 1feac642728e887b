"""Facts: named statements about ranks, hosts, devices and links, with citations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Where:
    """The places that a fact is about."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranks or self.hosts or self.devices or self.links)


@dataclass(frozen=True, slots=True)
class Fact:
    """One statement. ``name`` is in the vocabulary; ``detail`` is sorted (key, value) pairs."""

    name: str
    where: Where = Where()
    detail: tuple[tuple[str, Scalar], ...] = ()
    cites: tuple[str, ...] = ()

    def get(self, key: str, default: Scalar = None) -> Scalar:
        """The detail ``key``, or ``default``."""
        for name, value in self.detail:
            if name == key:
                return value
        return default


def fact(
    name: str,
    *,
    ranks: Iterable[int] = (),
    hosts: Iterable[str] = (),
    devices: Iterable[str] = (),
    links: Iterable[str] = (),
    cites: Iterable[str] = (),
    **detail: Scalar,
) -> Fact:
    """Make a fact. Raises KeyError for a name that is not in the vocabulary."""
    if name not in VOCABULARY:
        raise KeyError(f"{name!r} is not in fabwatch.watchdog.evidence.vocabulary")
    where = Where(
        tuple(sorted(set(ranks))),
        tuple(sorted(set(hosts))),
        tuple(sorted(set(devices))),
        tuple(sorted(set(links))),
    )
    return Fact(name, where, tuple(sorted(detail.items())), tuple(dict.fromkeys(cites)))


@dataclass(slots=True)
class Facts:
    """All facts of one diagnosis, and what was looked at.

    ``looked`` maps a source name to the ranks whose evidence of that source was read
    (:data:`EVERYONE` for sources that are not per rank, such as a job log or a host's kernel log).
    ``denied`` are names that evidence says No to outright, whatever was read.
    From it NO and UNKNOWN are derived: a fact that could have been seen by a source that was read
    is NO, unless silence of that source proves nothing (``Entry.silent``); otherwise UNKNOWN.
    """

    facts: list[Fact] = field(default_factory=list)
    looked: dict[str, set[int]] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
    unknowable: set[str] = field(default_factory=set)
    denied: set[str] = field(default_factory=set)

    def add(self, *facts: Fact) -> None:
        """Remember facts."""
        self.facts.extend(facts)

    def look(self, source: str, *ranks: int) -> None:
        """Remember that ``source`` was read, for ``ranks`` or (none given) for everyone."""
        self.looked.setdefault(source, set()).update(ranks or (EVERYONE,))

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

    def of(self, name: str) -> list[Fact]:
        """All facts of that name."""
        return [f for f in self.facts if f.name == name]

    def known(self, name: str, ranks: Iterable[int] | None = None) -> Known:
        """YES, NO or UNKNOWN, for the whole job or for all of ``ranks``.

        For the whole job: YES if any such fact exists; NO if for every rank (or, if ranks are
        unknown, at all) some source that can show it was read; else UNKNOWN. Raises KeyError for a
        name outside the vocabulary.
        """
        entry = VOCABULARY[name]
        found = self.of(name)
        if ranks is None:
            if found:
                return Known.YES
            wanted = set(self.ranks)
        else:
            wanted = set(ranks)
            if any(wanted <= set(f.where.ranks) for f in found) and wanted:
                return Known.YES
            covered = {r for f in found for r in f.where.ranks}
            if wanted and wanted <= covered:
                return Known.YES
        if name in self.denied:
            return Known.NO
        if name in self.unknowable:
            return Known.UNKNOWN
        for source in entry.denied_by:
            ranks_read = self.looked.get(source, set())
            if EVERYONE in ranks_read or (ranks_read and wanted <= ranks_read):
                return Known.NO
        union = set().union(*(self.looked.get(s, set()) for s in entry.denied_by), set())
        if wanted and wanted <= union:
            return Known.NO
        return Known.UNKNOWN


EVERYONE = -1
"""Stands in ``Facts.looked`` for a source that speaks for the whole job."""


def detail_of(facts: Iterable[Fact]) -> Mapping[str, Scalar]:
    """The merged details of facts of one name; the first one wins."""
    merged: dict[str, Scalar] = {}
    for one in facts:
        for key, value in one.detail:
            merged.setdefault(key, value)
    return merged
