"""Turns shaped lines into facts: one for each place, with what came first and how often.

A line that only tells of a consequence (``victim``) never counts as first. Order is by time where
all lines have one, else by place in the file; lines of different files without a clock are not
ordered against each other.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.signatures.versions import applies
from fabwatch.watchdog.evidence.facts import Fact, Facts, Scalar, fact
from fabwatch.watchdog.evidence.observations import LogEvent, PythonError
from fabwatch.watchdog.evidence.shapes import KIND, Shape, known
from fabwatch.watchdog.evidence.text_shapes import in_text

_CITES = 6
_HIDDEN = frozenset({"shape", "pid", "local_rank", "task"})
_PASSING = frozenset({"shape:error.unexplained", "shape:wait.reported"})
HARMLESS = "shape:line.harmless"
"""Lines that sound alarming and that their own software's documentation or source acquits."""
_LONG_AGO = re.compile(r"\b(?:\d{1,4}|a|two|three|some|many) (?:day|week|month|year)s? ago\b", re.I)
"""What a line says of the past is no fact of this failure."""
_SAME_S = 0.001
_STATES = frozenset(
    {"gpu", "interfaces", "sockets", "process", "pressure", "environment", "libraries"}
)
"""Sources that say how things are, not when they came to be so: no order among causes."""
_KINDS = 16
"""Sets of details for which one fact at one place is stated apart; more are put together."""


@dataclass(slots=True)
class _Seen:
    """One fact at one place."""

    shape: Shape
    details: dict[str, Scalar]
    rank: int | None
    places: dict[str, set[str]]
    key: tuple[float, str, int]
    when: float | None
    state: bool = False
    count: int = 0
    cites: list[str] = field(default_factory=list)


def say(
    events: Iterable[LogEvent],
    errors: Iterable[PythonError],
    rank_of_pid: Mapping[int, int],
    versions: Mapping[str, str],
    calm: Collection[str],
    facts: Facts,
) -> None:
    """Add a fact for every shape, place and set of details that lines show.

    In logs of ``calm`` (paths), which end in ordinary progress, errors that nothing explains are
    left out: the job got over them.
    """
    shapes = known()
    events = list(events)
    harmless = {(e.source.path, e.line) for e in events if e.kind == HARMLESS}
    seen: dict[tuple[object, ...], _Seen] = {}
    kinds: dict[tuple[object, ...], int] = {}
    for event in events:
        if event.kind.startswith(KIND):
            if event.kind in _PASSING and (
                event.source.path in calm or (event.source.path, event.line) in harmless
            ):
                continue
            if _LONG_AGO.search(event.text):
                continue
            shape = shapes.by_origin.get(event.get("shape"))
            if shape is not None and applies(shape.applies_to, versions) is not False:
                key = (event.when or 0.0, event.source.path, event.line)
                _add(seen, shape, dict(event.fields), event.rank, event.host, key, event.when,
                     event.cite, rank_of_pid, kinds, event.source.kind in _STATES)  # fmt: skip
    for error in errors:
        if error.source.kind != "exception":
            continue  # the lines of a log have been looked at
        for shape, fields, _ in in_text(f"{error.type}: {error.text}", "exception"):
            key = (error.when or 0.0, error.source.path, 0)
            cite = error.cite or error.source.cite()
            _add(seen, shape, fields, error.rank, error.source.host, key, error.when, cite,
                 rank_of_pid, kinds)  # fmt: skip
    _ordered(list(seen.values()), facts)


def _add(
    seen: dict[tuple[object, ...], _Seen],
    shape: Shape,
    fields: dict[str, str],
    rank: int | None,
    host: str | None,
    key: tuple[float, str, int],
    when: float | None,
    cite: str,
    rank_of_pid: Mapping[int, int],
    kinds: dict[tuple[object, ...], int],
    state: bool = False,
) -> None:
    places: dict[str, set[str]] = defaultdict(set)
    where = dict(shape.where)
    pid = fields.get("pid", "")
    if rank is None and pid.isdigit() and len(pid) < 12:
        rank = rank_of_pid.get(int(pid))
    details: dict[str, Scalar] = {}
    for name, value in fields.items():
        place = where.get(name)
        if place == "rank" and value.isdigit() and len(value) < 9:
            rank = int(value)
        elif place in ("host", "device", "link"):
            places[place].add(value)
        if name not in _HIDDEN and (place is None or place in ("device", "link")):
            details[name] = value
    if host and not places["host"]:
        places["host"].add(host)
    spot = (shape.fact, rank, tuple(sorted((k, *sorted(v)) for k, v in places.items())))
    said = tuple(sorted((k, v) for k, v in details.items() if not _varying(v)))
    found = seen.get((*spot, said))
    if found is None and (several := seen.get((*spot, ""))) is not None:
        found = several
    if found is None:
        kinds[spot] = kinds.get(spot, 0) + 1
        same = (*spot, said if kinds[spot] < _KINDS else "")
        found = seen[same] = _Seen(shape, details, rank, dict(places), key, when, state)
    elif key < found.key:
        found.key, found.when, found.details = key, when, details
    found.count += 1
    if len(found.cites) < _CITES:
        found.cites.append(cite)


def _varying(value: Scalar) -> bool:
    """Paths, sizes, addresses: they differ from line to line and make no fact of their own."""
    text = str(value)
    return len(text) > 48 or "/" in text or sum(char.isdigit() for char in text) > 4


def _ordered(found: list[_Seen], facts: Facts) -> None:
    """State them. ``order`` counts from 1 among the causes; ``first`` is a cause with order 1."""
    causes = [one for one in found if not (one.shape.victim or one.shape.background or one.state)]
    timed = all(one.when is not None for one in causes)
    starts: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for one in causes:
        at, path, line = one.key
        starts["" if timed else path].append((at if timed else 0.0, line))
    for one in found:
        if one.state:
            facts.add(_fact(one, 1))
            continue
        at, path, line = one.key
        mine = sorted(set(starts.get("" if timed else path, [])))
        place = (at if timed else 0.0, line)
        order = sum(
            1 for other in mine
            if other[0] < place[0] - _SAME_S
            or (other[0] <= place[0] + _SAME_S and other[1] < place[1])
        ) + 1  # fmt: skip
        facts.add(_fact(one, order))


def _fact(one: _Seen, order: int) -> Fact:
    details: dict[str, Scalar] = {
        **one.details,
        "count": one.count,
    }
    if not one.shape.background:
        details |= {"order": order, "first": order == 1 and not one.shape.victim}
    if one.when is not None:
        details["when"] = one.when
    if one.shape.victim:
        details["victim"] = True
    made = fact(
        one.shape.fact,
        ranks=[] if one.rank is None else [one.rank],
        hosts=one.places.get("host", ()),
        devices=one.places.get("device", ()),
        links=one.places.get("link", ()),
        cites=one.cites,
    )
    return Fact(made.name, made.where, tuple(sorted(details.items())), made.cites)
