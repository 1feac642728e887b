"""Line shapes: what a line of text must look like to become a fact, found in one linear pass.

The library declares shapes (``shapes:`` in a signature, or a shared file); whoever loads it lets
them be known here with :func:`learn`, and every reader of text asks :func:`known` for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from fabwatch.watchdog.evidence import vocabulary
from fabwatch.watchdog.evidence.vocabulary import Entry

KIND = "shape:"
"""Events that a shape made have this prefix before the name of their fact."""
SEARCH_CHARS = 4096
"""How much of a line is searched."""
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_EQUAL = str.maketrans("123456789", "000000000")
_SEEN_BYTES = 32 * 1024**2
_OFTEN_SEEN = 1000
_KEPT_KINDS = 50_000


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


EVERY, OFTEN, SOME = 0, 1, 2
"""How many lines with a literal are wanted: all, some thousand, or a sample of each kind."""
_LIMITS = {EVERY: (1 << 62, 1 << 62), OFTEN: (2000, 50), SOME: (64, 2)}
"""Class -> lines of one kind that are taken freely, and after that of each block."""


@dataclass(slots=True)
class _Kind:
    """One kind of line: how many of it are wanted, and how many came."""

    wanted: int
    came: int = 0


@lru_cache(maxsize=64)
def _fewest(literals: tuple[tuple[bytes, int], ...]) -> list[tuple[bytes, int]]:
    """The literals that are enough, digits made equal; kept, since every file asks for the same."""
    equal: dict[bytes, int] = {}
    for text, wanted in literals:
        key = text.translate(_DIGITS)
        equal[key] = min(wanted, equal.get(key, wanted))
    # A text that holds another one of the same class or a greedier one adds nothing.
    ordered = sorted(equal.items(), key=lambda item: (len(item[0]), item))
    kept: list[tuple[bytes, int]] = []
    for text, wanted in ordered:
        if not any(short in text and take <= wanted for short, take in kept):
            kept.append((text, wanted))
    return kept


class Sieve:
    """Finds the lines of a block that hold a literal, at a cost that repetition does not raise.

    A log of millions of lines holds few different ones once digits are made equal; each of those
    is searched once. Of kinds that come by the thousand only some are taken, and the last one of
    each block, which tells where things ended.
    """

    def __init__(self, literals: Mapping[bytes, int]) -> None:
        """``literals`` maps a text to EVERY, OFTEN or SOME."""
        self.literals = _fewest(tuple(sorted(literals.items())))
        self._dull: set[bytes] = set()
        self._hits: dict[bytes, _Kind] = {}
        self._bytes = 0

    def starts(self, block: bytes) -> list[int]:
        """Offsets of the lines of interest, in order."""
        lines = block.translate(_DIGITS).split(b"\n")
        kinds = set(lines)
        new = kinds - self._dull
        new.difference_update(self._hits)
        if new:
            self._sort(new)
        hits = self._hits
        if kinds.isdisjoint(hits):
            return []
        out: list[int] = []
        some: dict[bytes, int] = {}
        skipped: dict[bytes, int] = {}
        at = 0
        for line in lines:
            kind = hits.get(line)
            if kind is not None:
                kind.came += 1
                freely, per_block = _LIMITS[kind.wanted]
                if kind.came <= freely:
                    out.append(at)
                else:
                    taken = some.get(line, 0)
                    if taken < per_block:
                        some[line] = taken + 1
                        out.append(at)
                    else:
                        skipped[line] = at
            at += len(line) + 1
        return sorted([*out, *skipped.values()]) if skipped else out

    def _sort(self, new: set[bytes]) -> None:
        text = b"\n".join(new)
        self._bytes += len(text)
        if self._bytes > _SEEN_BYTES:
            self._bytes = len(text)
            self._dull.clear()
            self._hits = {
                line: kind for line, kind in self._hits.items() if kind.came > _OFTEN_SEEN
            }
        for literal, wanted in self.literals:
            at = text.find(literal)
            while at >= 0:
                start = text.rfind(b"\n", 0, at) + 1
                end = text.find(b"\n", at)
                end = len(text) if end < 0 else end
                kind = self._hits.setdefault(text[start:end], _Kind(wanted))
                kind.wanted = min(kind.wanted, wanted)
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
        self._by_literal = tuple(
            (literal.translate(_EQUAL), tuple(ones)) for literal, ones in by_literal.items()
        )
        self._compiled: dict[str, re.Pattern[str]] = {}
        self._candidates: dict[str, tuple[Shape, ...]] = {}

    def sieve(self, more: Mapping[bytes, int] | None = None) -> Sieve:
        """A fresh sieve for one artefact; ``more`` are further literals."""
        wanted: dict[bytes, int] = dict(more or {})
        for one in self.all:
            take = SOME if one.background and "rank" not in dict(one.where) else OFTEN
            for literal in one.literals:
                key = literal.encode()
                wanted[key] = min(take, wanted.get(key, take))
        return Sieve(wanted)

    def _of(self, text: str) -> tuple[Shape, ...]:
        """Shapes of which ``text`` holds a literal, digits made equal."""
        key = text.translate(_EQUAL)
        found = self._candidates.get(key)
        if found is None:
            if len(self._candidates) > _KEPT_KINDS:
                self._candidates.clear()
            ones = [one for literal, some in self._by_literal if literal in key for one in some]
            found = self._candidates[key] = tuple(dict.fromkeys(ones))
        return found

    def match(self, text: str, source: str) -> list[Found]:
        """Shapes that ``text`` (one line of ``source``) has, with details, however often each."""
        text = text[:SEARCH_CHARS]
        out: list[Found] = []
        facts: dict[str, Shape] = {}
        for one in self._of(text):
            if one.only and source not in one.sources:
                continue
            if one.fact in facts and not _tells_more(one, facts[one.fact]):
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
