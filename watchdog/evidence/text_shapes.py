"""Finds line shapes in text that no log scanner takes apart: output of commands, kernel logs."""

from __future__ import annotations

from collections import defaultdict

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact, decode
from fabwatch.watchdog.evidence.log_lines import Line, unmix
from fabwatch.watchdog.evidence.observations import LogEvent, Source
from fabwatch.watchdog.evidence.shapes import KIND, Shape, known

KEEP = 2000
"""Events of one fact that are kept of one artefact."""


def event_of(
    shape: Shape,
    fields: dict[str, str],
    source: Source,
    number: int,
    line: Line,
    rank: int | None,
    host: str | None,
) -> LogEvent:
    """The event of a line that has a shape."""
    return LogEvent(
        source,
        KIND + shape.fact,
        number,
        line.body.strip()[:1000],
        rank,
        host,
        line.when,
        (*fields.items(), ("shape", shape.origin)),
    )


def look(artefact: Artefact, kind: str) -> list[LogEvent]:
    """Events of all shaped lines. ``kind`` is the source they belong to. May raise OSError."""
    shapes = known()
    sieve = shapes.sieve()
    source = artefact.source(kind)
    counts: dict[str, int] = defaultdict(int)
    out: list[LogEvent] = []
    for first, block in artefact.blocks():
        number, at = first, 0
        for start in sieve.starts(block):
            number += block.count(b"\n", at, start)
            at = start
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            text = decode(block[start : min(end, start + LINE_BYTES)]).rstrip("\r")
            line = unmix(text)
            for shape, fields in shapes.match(text, kind):
                counts[shape.fact] += 1
                if counts[shape.fact] <= KEEP:
                    rank = line.rank if line.rank is not None else source.rank
                    host = line.host or source.host
                    out.append(event_of(shape, fields, source, number, line, rank, host))
    return out


def in_text(text: str, kind: str) -> list[tuple[Shape, dict[str, str], str]]:
    """Shapes of the lines of a short text, such as an exception's message, with their line."""
    shapes = known()
    return [
        (shape, fields, line)
        for line in text.split("\n")[:200]
        for shape, fields in shapes.match(line, kind)
    ]
