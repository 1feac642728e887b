"""Reads the line shapes that signatures and shared files declare, and checks them.

A shape is checked before it is used: its regex compiles and cannot backtrack without bounds, its
samples match, its counter-samples do not, and every match holds a literal.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from fabwatch.signatures.strict_yaml import Problems, Reader, Tree
from fabwatch.signatures.versions import bad_range
from fabwatch.watchdog.evidence.shapes import SEARCH_CHARS, Shape
from fabwatch.watchdog.evidence.vocabulary import BASE, SOURCES

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        from re import _parser as _sre  # type: ignore[attr-defined]
    except ImportError:  # Python 3.10
        import sre_parse as _sre

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*\.[a-z0-9]+(-[a-z0-9]+)*")
PLACES = ("rank", "host", "device", "link")
"""What a named group may be a place of; a group of that name is one by itself."""
_RESERVED = frozenset({"first", "order", "count", "when", "victim"})
_LITERAL_CHARS = 4
_LONG = 256
_MANY_LONG = 3
_FAMILY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

PLACE_GROUPS = {"gpu": "device", "bus": "device", "interface": "link", "hca": "link"}
"""Further group names that are places by themselves."""


def read_shapes(items: Iterable[Tree], problems: Problems) -> tuple[Shape, ...]:
    """The shapes of a ``shapes:`` list; their problems go to ``problems``."""
    return tuple(_shape(item, problems) for item in items)


def is_shared(tree: Tree) -> bool:
    """Whether a file only declares shapes for several signatures."""
    return isinstance(tree.value, dict) and "family" in tree.value and "id" not in tree.value


def read_shared(tree: Tree, problems: Problems) -> tuple[Shape, ...]:
    """The shapes of a shared file: schema, family, shapes."""
    top = Reader(tree, problems, "a file of shapes")
    schema = top.text("schema", required=True)
    if schema and schema != "1":
        top.complain(f"schema {schema!r} is not known; this reads schema 1")
    family = top.text("family", required=True)
    if family and not _FAMILY.fullmatch(family):
        top.complain(f"the family {family!r} must be kebab-case")
    found = read_shapes(top.items("shapes", required=True), problems)
    top.done()
    return found


def _shape(tree: Tree, problems: Problems) -> Shape:
    reader = Reader(tree, problems, "a shape")
    name = reader.text("fact", required=True)
    if name and not _NAME.fullmatch(name):
        reader.complain(f"the fact {name!r} must look like noun.participle")
    sources = reader.texts("sources") or ("job-log", "nccl-log", "exception")
    for source in sources:
        if source not in SOURCES:
            reader.complain(f"no source is called {source!r}; there are {', '.join(SOURCES)}")
    regex = reader.text("regex", required=True)
    literals = reader.texts("literal")
    pattern, why = _compiled(regex)
    if why:
        reader.complain(f"the regex {why}")
    if pattern is not None and not literals:
        literals = literals_of(regex)
        if not literals:
            reader.complain(
                f"no text of {_LITERAL_CHARS} or more characters stands in every match; "
                "give 'literal'"
            )
    out = Shape(
        fact=name,
        regex=regex,
        literals=literals,
        sources=tuple(source for source in sources if source in SOURCES),
        says=reader.text("says"),
        fetch=reader.text("fetch"),
        victim=reader.flag("victim"),
        background=reader.flag("background"),
        silent=reader.flag("silent"),
        only=reader.flag("only"),
        where=_where(reader, pattern),
        details=_pairs(reader, "detail"),
        applies_to=_pairs(reader, "applies_to"),
        samples=_lines(reader, "sample", required=True),
        nevers=_lines(reader, "never"),
        origin=f"{problems.path}:{tree.line}",
    )
    for key, wanted in out.applies_to:
        if problem := bad_range(key, wanted):
            reader.complain(problem)
    reader.done()
    return out


def _lines(reader: Reader, key: str, required: bool = False) -> tuple[str, ...]:
    """Lines with the white space that they begin with."""
    tree = reader.take(key, required)
    if tree is None:
        return ()
    items = tree.value if isinstance(tree.value, list) else [tree]
    out = []
    for item in items:
        if isinstance(item.value, str) and item.value.strip():
            out.append(item.value.rstrip("\n"))
        else:
            reader.complain(f"{key!r} must hold lines", item.line)
    if required and not out:
        reader.complain(f"{key!r} must not be empty", tree.line)
    return tuple(out)


def _pairs(reader: Reader, key: str) -> tuple[tuple[str, str], ...]:
    tree = reader.take(key)
    if tree is None:
        return ()
    inner = Reader(tree, reader.problems, key)
    return tuple((name, inner.text(name, required=True)) for name in sorted(inner.left))


def _where(reader: Reader, pattern: re.Pattern[str] | None) -> tuple[tuple[str, str], ...]:
    groups = set(pattern.groupindex) if pattern else set()
    for name in sorted(groups & _RESERVED):
        reader.complain(f"the group {name!r} has a meaning of its own; call it otherwise")
    said = dict(_pairs(reader, "where"))
    for group, place in said.items():
        if pattern is not None and group not in groups:
            reader.complain(f"'where' names the group {group!r}, which the regex does not have")
        if place not in PLACES:
            reader.complain(f"'where' may say {', '.join(PLACES)}, not {place!r}")
    out = {name: name for name in PLACES if name in groups}
    out |= {name: place for name, place in PLACE_GROUPS.items() if name in groups}
    return tuple(sorted((out | said).items()))


# ---------------------------------------------------------------------- regexes


def _compiled(regex: str) -> tuple[re.Pattern[str] | None, str]:
    """The compiled regex, and what is wrong with it ("" if nothing)."""
    try:
        pattern = re.compile(regex)
    except (re.error, RecursionError, OverflowError) as err:
        return None, f"does not compile: {err}"
    if pattern.flags & re.IGNORECASE:
        return pattern, "ignores case, which no literal can; write [Ee]rror"
    if pattern.search("") is not None:
        return pattern, "matches an empty line"
    long, nested = _repeats(_sre.parse(regex), False)
    if nested:
        return pattern, "repeats what is itself repeated without bounds, and may take for ever"
    if long > _MANY_LONG:
        return pattern, (
            f"has {long} stretches of unbounded length; give all but {_MANY_LONG} a bound "
            f"below {_LONG}, as in .{{0,80}}"
        )
    return pattern, ""


def _repeats(parsed: Any, inside: bool) -> tuple[int, bool]:
    """How many long repeats follow each other, and whether one stands inside another."""
    long, nested = 0, False
    for op, value in parsed:
        name = str(op)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            _, most, body = value
            many = most is _sre.MAXREPEAT or int(most) > _LONG
            grows = many or int(most) > 8
            below, bad = _repeats(body, inside or grows)
            nested = nested or bad or (inside and many) or (grows and _varies(body))
            long += max(below, int(many))
        elif name == "BRANCH":
            each = [_repeats(one, inside) for one in value[1]]
            long += max((n for n, _ in each), default=0)
            nested = nested or any(bad for _, bad in each)
        else:
            for body in _bodies(value):
                below, bad = _repeats(body, inside)
                long, nested = long + below, nested or bad
    return long, nested


def _varies(body: Any) -> bool:
    """Whether the body can match texts of several lengths, in which repeats lose themselves."""
    low, high = body.getwidth()
    return bool(low != high)


def _bodies(value: Any) -> Iterator[Any]:
    if isinstance(value, _sre.SubPattern):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _bodies(one)


def literals_of(regex: str) -> tuple[str, ...]:
    """Texts of which every match holds one, as long as can be told; () when there are none."""
    return _best(_sre.parse(regex))


def _best(parsed: Any) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []
    run = ""
    for op, value in [*parsed, (None, None)]:
        name = str(op)
        if name == "LITERAL":
            run += chr(value)
            continue
        if run:
            found.append((run,))
            run = ""
        if name == "SUBPATTERN":
            found.append(_best(value[-1]))
        elif name == "BRANCH":
            each = [_best(one) for one in value[1]]
            found.append(tuple(lit for one in each for lit in one) if all(each) else ())
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT") and int(value[0]) > 0:
            found.append(_best(value[2]))
    good = [one for one in found if one and min(map(len, one)) >= _LITERAL_CHARS]
    return max(good, key=lambda one: (min(map(len, one)), -len(one)), default=())


# ---------------------------------------------------------------------- checks


def check(shapes: Iterable[Shape]) -> list[str]:
    """Problems of shapes by their samples: ``file:line: text`` each."""
    problems: list[str] = []
    for one in shapes:
        try:
            pattern = re.compile(one.regex)
        except re.error:
            continue  # told when it was read
        for sample in one.samples:
            if pattern.search(sample[:SEARCH_CHARS]) is None:
                problems.append(f"{one.origin}: {one.fact}: the sample does not match: {sample!r}")
            elif not any(literal in sample for literal in one.literals):
                problems.append(
                    f"{one.origin}: {one.fact}: the sample holds none of the literals "
                    f"{', '.join(map(repr, one.literals))}: {sample!r}"
                )
        for never in one.nevers:
            if pattern.search(never[:SEARCH_CHARS]) is not None:
                problems.append(f"{one.origin}: {one.fact}: matches what it must not: {never!r}")
    return problems


def check_together(by_file: dict[str, tuple[Shape, ...]]) -> list[str]:
    """Problems of shapes with each other: a fact declared in two files, one that says nothing."""
    problems: list[str] = []
    home: dict[str, str] = {}
    for file, shapes in by_file.items():
        for name in dict.fromkeys(one.fact for one in shapes):
            mine = [one for one in shapes if one.fact == name]
            first = mine[0]
            if name in BASE:
                continue
            if name in home:
                problems.append(
                    f"{first.origin}: {name} is declared in {home[name]}; move it into a shared "
                    "file of shapes and use it from both"
                )
            home.setdefault(name, file)
            if not any(one.says for one in mine):
                problems.append(f"{first.origin}: {name} needs 'says': what the line means")
    return problems
