"""Line shapes: what a line of text must look like to become a fact, found in one linear pass.

The library declares shapes (``shapes:`` in a signature, or a shared file); whoever loads it lets
them be known here with :func:`learn`, and every reader of text asks :func:`known` for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from fabwatch.watchdog.evidence import vocabulary
from fabwatch.watchdog.evidence.vocabulary import Entry

KIND = "shape:"
"""Events that a shape made have this prefix before the name of their fact."""
SEARCH_CHARS = 4096
"""How much of a line is searched."""
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_SEEN_BYTES = 32 * 1024**2
_FREELY = 2000
_PER_BLOCK = 50


@dataclass(frozen=True, slots=True)
class Shape:
    """One way in which a line states a fact.

    Every matching line holds one of ``literals``. Named groups of ``regex`` become details;
    ``where`` says which of them name places: (group, rank | host | device | link). ``details``
    are fixed. ``victim``: such a line only tells of a consequence. ``background``: an ordinary
    line (a version, a step), which is no cause either. ``only``: it counts in ``sources`` alone.
    ``silent``: no such line proves nothing. ``origin`` is ``file:line``.
    """

    fact: str
    regex: str
    literals: tuple[str, ...]
    sources: tuple[str, ...]
    says: str = ""
    fetch: str = ""
    victim: bool = False
    background: bool = False
    silent: bool = False
    only: bool = False
    where: tuple[tuple[str, str], ...] = ()
    details: tuple[tuple[str, str], ...] = ()
    applies_to: tuple[tuple[str, str], ...] = ()
    samples: tuple[str, ...] = ()
    nevers: tuple[str, ...] = ()
    origin: str = ""

    def entry(self) -> Entry:
        """What the vocabulary says of its fact. Notes of any kind never deny anything."""
        silent = self.sources if self.silent else ("other-text",) * ("other-text" in self.sources)
        return Entry(self.says, self.sources, tuple(dict.fromkeys(silent)), self.fetch)


@dataclass(slots=True)
class Sieve:
    """Finds the lines of a block that hold a literal, at a cost that repetition does not raise.

    A log of millions of lines holds few different ones once digits are made equal; each of those
    is searched once.
    """

    literals: tuple[bytes, ...]
    _dull: set[bytes] = field(default_factory=set)
    _hits: dict[bytes, int] = field(default_factory=dict)
    _bytes: int = 0

    def starts(self, block: bytes) -> list[int]:
        """Offsets of the lines of interest. Of those that come by the thousand, only some."""
        if not self.literals:
            return []
        lines = block.translate(_DIGITS).split(b"\n")
        kinds = set(lines)
        new = kinds - self._dull
        new.difference_update(self._hits)
        if new:
            self._sort(new)
        if kinds.isdisjoint(self._hits):
            return []
        out: list[int] = []
        some: dict[bytes, int] = {}
        at = 0
        for line in lines:
            if line in self._hits:
                self._hits[line] += 1
                some[line] = some.get(line, 0) + 1
                if self._hits[line] <= _FREELY or some[line] <= _PER_BLOCK:
                    out.append(at)
            at += len(line) + 1
        return out

    def _sort(self, new: set[bytes]) -> None:
        text = b"\n".join(new)
        self._bytes += len(text)
        if self._bytes > _SEEN_BYTES:
            self._bytes = len(text)
            self._dull.clear()
            self._hits.clear()
        for literal in self.literals:
            at = text.find(literal)
            while at >= 0:
                start = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                self._hits.setdefault(text[start:end], 0)
                at = text.find(literal, end)
        self._dull |= new
        self._dull.difference_update(self._hits)


Found = tuple[Shape, dict[str, str]]
_IN_LINE = 64
"""How often one shape is read from one line."""


def _tells_more(one: Shape, than: Shape) -> bool:
    """Whether a further shape of the same fact says something else of the same line."""
    return one.details != than.details


class Shapes:
    """All shapes that are known, ready to be searched for."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self.all = tuple(shapes)
        self.by_origin = {one.origin: one for one in self.all}
        by_literal: dict[str, list[Shape]] = {}
        for one in self.all:
            for literal in one.literals:
                by_literal.setdefault(literal, []).append(one)
        self._by_literal = tuple((lit, tuple(ones)) for lit, ones in by_literal.items())
        self._compiled: dict[str, re.Pattern[str]] = {}
        texts = sorted({lit.encode().translate(_DIGITS) for lit in by_literal}, key=len)
        kept: list[bytes] = []
        for text in texts:
            if not any(short in text for short in kept):
                kept.append(text)
        self._literals = tuple(kept)

    def sieve(self) -> Sieve:
        """A fresh sieve, for one artefact."""
        return Sieve(self._literals)

    def match(self, text: str, source: str) -> list[Found]:
        """Shapes that ``text`` (one line of ``source``) has, with details, however often each."""
        text = text[:SEARCH_CHARS]
        out: list[Found] = []
        facts: dict[str, Shape] = {}
        for literal, ones in self._by_literal:
            if literal not in text:
                continue
            for one in ones:
                if one.only and source not in one.sources:
                    continue
                if one.fact in facts and (
                    facts[one.fact] is one or not _tells_more(one, facts[one.fact])
                ):
                    continue
                said: set[tuple[tuple[str, str], ...]] = set()
                for hit in islice(self._pattern(one).finditer(text), _IN_LINE):
                    groups = {k: v.strip() for k, v in hit.groupdict().items() if v}
                    if (key := tuple(groups.items())) not in said:
                        said.add(key)
                        out.append((one, {**dict(one.details), **groups}))
                if said:
                    facts[one.fact] = one
        return out

    def _pattern(self, one: Shape) -> re.Pattern[str]:
        found = self._compiled.get(one.regex)
        if found is None:
            found = self._compiled[one.regex] = re.compile(one.regex)
        return found


_files: dict[str, tuple[Shape, ...]] = {}
_providers: list[Callable[[], object]] = []
_ready: list[Shapes] = []


def provide(load: Callable[[], object]) -> None:
    """Have ``load`` called before shapes are first needed; it calls :func:`learn`."""
    if load not in _providers:
        _providers.append(load)


def learn(file: str, shapes: Iterable[Shape]) -> None:
    """Know the shapes that ``file`` declares (instead of what it declared before)."""
    found = tuple(shapes)
    if _files.get(file, ()) == found:
        return
    _files[file] = found
    _ready.clear()
    for one in found:
        vocabulary.derive(one.fact, one.entry())


def known_of(file: str) -> tuple[Shape, ...]:
    """The shapes that ``file`` declared."""
    return _files.get(file, ())


def known() -> Shapes:
    """All shapes declared so far."""
    while _providers:
        _providers.pop()()
    if not _ready:
        _ready.append(Shapes(one for _, ones in sorted(_files.items()) for one in ones))
    return _ready[0]
