"""Read the watch's own small files: incident, manifest, launch, progress page, exits, exceptions.

Also torchelastic's error.json. Each is recognised by its fields, not by its name.

Example (exits.jsonl)::

    {"rank": 1, "pid": 4711, "code": 1, "signal": null, "when": 1796067902.1, "order": 1}
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import (
    Exit,
    Frame,
    Group,
    GroupStatus,
    JobShape,
    Observation,
    Parsed,
    ProgressPage,
    PythonError,
    ReadError,
    Source,
    Stall,
)
from fabwatch.watchdog.evidence.parsers.flight_recorder import ranks_of
from fabwatch.watchdog.evidence.tracebacks import frames_of_text

NAME = "watch-files"
MAKES = ("watch", "pg-status", "exit", "exception")

STALE_TICKS = 3
_LIMIT = 64 * 1024 * 1024
_EXIT = re.compile(rb'^\s*\{[^\n]*"rank"[^\n]*"(?:code|signal)"')
_SCHEMAS = (b'"fabwatch.incident/', b'"fabwatch.run/')


def sniff(head: bytes, name: str) -> int:
    """JSON with the fields of one of these files."""
    body = head.lstrip()
    if body[:1] != b"{":
        return 0
    if any(schema in body[:2000] for schema in _SCHEMAS):
        return 98
    if b'"tick_s"' in body or (b'"status"' in body and b'"age_s"' in body):
        return 98
    first = body.split(b"\n", 1)[0]
    if _EXIT.match(first) and b'"order"' in first and b'"pid"' in first:
        return 96
    if b'"frames"' in body and b'"type"' in body and b'"message"' in body and b'"pid"' in body:
        return 90
    if b'"message"' in body and b'"extraInfo"' in body:
        return 92
    if b'"trigger"' in body and b'"still_ranks"' in body:
        return 90
    return 0


def parse(artefact: Artefact) -> Parsed:
    """The observations of one such file."""
    data, _ = artefact.read(_LIMIT)
    first = data.lstrip().split(b"\n", 1)[0]
    if _EXIT.match(first) and b'"order"' in first and first.rstrip().endswith(b"}"):
        return _exits(artefact, data)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as err:
        return Parsed(errors=(artefact.error(f"broken JSON: {err}", advice="not used"),))
    if not isinstance(value, dict):
        return Parsed(errors=(artefact.error("not an object", advice="not used"),))
    schema = str(value.get("schema", ""))
    if schema.startswith("fabwatch.run/"):
        source = artefact.source("watch")
        shape = _shape(source, value)
        return Parsed((shape,) if shape else ())
    if "trigger" in value:
        return _incident(artefact, value)
    if "status" in value or "tick_s" in value:
        return _page(artefact, value)
    if "frames" in value and "type" in value:
        return _exception(artefact, value)
    if "message" in value:
        return _elastic(artefact, value)
    return Parsed(errors=(artefact.error("no known fields", advice="not used"),))


def _exits(artefact: Artefact, data: bytes) -> Parsed:
    source = artefact.source("exit")
    out: list[Observation] = []
    errors: list[ReadError] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            value = msgspec.json.decode(line)
            rank = value["rank"]
            if type(rank) is not int:
                raise ValueError("rank is no number")
        except (msgspec.DecodeError, RecursionError, ValueError, KeyError, TypeError) as err:
            errors.append(artefact.error(f"not an exit: {err}", str(number), "line left out"))
            continue
        oom = value.get("oom_killed")
        out.append(
            Exit(
                Source(source.path, "exit", rank, source.host, source.snapshot, source.taken),
                rank,
                _int(value.get("pid")),
                _int(value.get("code")),
                _int(value.get("signal")),
                _float(value.get("when")),
                _int(value.get("order")),
                value.get("ours") is True,
                oom if isinstance(oom, bool) else None,
                source.cite(number),
            )
        )
    return Parsed(tuple(out), tuple(errors), (source,))


def _incident(artefact: Artefact, value: dict[str, Any]) -> Parsed:
    source = artefact.source("watch", taken=_float(value.get("captured")))
    job = value.get("job")
    stall = Stall(
        source,
        str(value.get("trigger") or "")[:80],
        str(value.get("phase") or "")[:80],
        _float(value.get("waited_s")),
        _float(value.get("longest_wait_s")),
        _float(value.get("limit_s")),
        _float(value.get("last_progress")),
        _float(value.get("detected")),
        ranks_of(value.get("still_ranks")),
        ranks_of(value.get("moving_ranks")),
        value.get("resolved") is True,
        _float(value.get("captured")),
        _float(job.get("started")) if isinstance(job, dict) else None,
        ended[:80] if isinstance(ended := value.get("ended"), str) else "",
        _float(value.get("told_to_end")),
    )
    out: list[Observation] = [stall]
    if isinstance(job, dict) and (shape := _shape(source, job)):
        out.append(shape)
    return Parsed(tuple(out), (), (source,))


def _shape(source: Source, value: dict[str, Any]) -> JobShape | None:
    ranks = []
    raw = value.get("ranks")
    for item in raw if isinstance(raw, list) else []:
        if isinstance(item, dict) and type(item.get("rank")) is int:
            host = item.get("host")
            ranks.append(
                (item["rank"], host if isinstance(host, str) else "", _int(item.get("pid")) or 0)
            )
    versions = value.get("versions")
    pairs = (
        tuple(
            (str(k)[:80], str(v)[:80])
            for k, v in sorted(versions.items(), key=lambda kv: str(kv[0]))
            if isinstance(v, str | int | float)
        )
        if isinstance(versions, dict)
        else ()
    )
    world = _int(value.get("world_size"))
    if world is None and isinstance(value.get("job"), dict):
        world = _int(value["job"].get("world_size"))
    if world is None and not ranks and not pairs:
        return None
    return JobShape(source, world, tuple(ranks), pairs)


def _page(artefact: Artefact, value: dict[str, Any]) -> Parsed:
    payload = value.get("payload")
    body = {**value, **payload} if isinstance(payload, dict) else value
    rank = _int(body.get("rank"))
    if rank is None:
        rank = artefact.hint.rank
    if rank is None:
        return Parsed(errors=(artefact.error("a page without a rank", advice="not used"),))
    source = artefact.source("pg-status", rank=rank, taken=_float(body.get("taken")))
    age = _float(body.get("age_s")) or 0.0
    tick_s = _float(body.get("tick_s")) or 1.0
    stale = body.get("stale")
    groups = []
    raw = body.get("groups")
    for item in raw if isinstance(raw, list) else []:
        if isinstance(item, dict):
            groups.append(
                Group(
                    str(item.get("name") or "")[:200],
                    str(item.get("desc") or "")[:200],
                    ranks_of(item.get("ranks")),
                )
            )
    status = []
    marks = body.get("status")
    for key, item in marks.items() if isinstance(marks, dict) else ():
        if isinstance(item, dict):
            status.append(
                (
                    str(key)[:200],
                    GroupStatus(
                        *(_mark(item.get(name)) for name in ("enqueued", "started", "completed"))
                    ),
                )
            )
    page = ProgressPage(
        source,
        rank,
        _int(body.get("pid")) or 0,
        _int(body.get("world_size")),
        _int(body.get("local_rank")),
        _int(body.get("tick")) or 0,
        age,
        stale if isinstance(stale, bool) else age > STALE_TICKS * tick_s,
        str(body.get("torch") or "")[:80],
        tuple(groups),
        tuple(status),
    )
    return Parsed((page,), (), (source,))


def _exception(artefact: Artefact, value: dict[str, Any]) -> Parsed:
    rank = _int(value.get("rank"))
    source = artefact.source("exception", rank=rank, taken=_float(value.get("when")))
    frames = []
    raw = value.get("frames")
    for item in raw[-500:] if isinstance(raw, list) else []:
        if isinstance(item, dict):
            frames.append(
                Frame(
                    str(item.get("function") or "")[:400],
                    str(item.get("file") or "")[:1000],
                    _int(item.get("line")) or 0,
                )
            )
    error = PythonError(
        source,
        source.rank,
        str(value.get("type") or "")[:200],
        str(value.get("message") or "")[:4096],
        tuple(frames),
        _float(value.get("when")),
        source.cite(),
    )
    return Parsed((error,), (), (source,))


def _elastic(artefact: Artefact, value: dict[str, Any]) -> Parsed:
    """Torchelastic's error.json, written by a main that is decorated with @record."""
    message = value.get("message")
    extra: Any = {}
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        message = message.get("message")
    if not isinstance(extra, dict):
        extra = {}
    when = None
    stamp = extra.get("timestamp")
    if isinstance(stamp, str | int | float):
        try:
            when = float(stamp)
        except ValueError:
            when = None
    kind, _, text = str(message or "").partition(": ")
    source = artefact.source("exception", taken=when)
    frames = frames_of_text(str(extra.get("py_callstack") or "")[:1_000_000])
    error = PythonError(source, source.rank, kind[:200], text[:4096], frames, when, source.cite())
    return Parsed((error,), (), (source,))


def _int(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _mark(value: Any) -> int:
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value)
        except ValueError:
            return -1
    number = _int(value)
    return -1 if number is None else number


def _float(value: Any) -> float | None:
    if type(value) is int or type(value) is float:
        return float(value) if abs(value) < 1e15 else None
    return None
