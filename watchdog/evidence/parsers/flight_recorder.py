"""Read torch's flight recorder: pickles and JSON of torch 2.2 to 2.14, also cut short.

A dump names no rank: it comes from the file name, or from the one rank that all its groups share.

>>> from fabwatch.watchdog.evidence.parsers.flight_recorder import ranks_of
>>> ranks_of("[0, 1, 7]")
(0, 1, 7)
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fabwatch.watchdog.evidence import pickle_rows
from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.naming import trailing_rank
from fabwatch.watchdog.evidence.observations import (
    Frame,
    Group,
    GroupStatus,
    Op,
    Parsed,
    RankTrace,
    ReadError,
)
from fabwatch.watchdog.evidence.op_columns import COLUMNS, OpColumns
from fabwatch.watchdog.evidence.opnames import P2P, split_profiling_name
from fabwatch.watchdog.evidence.safe_pickle import Refused, load

NAME = "flight-recorder"
MAKES = ("flight-recorder",)

MAX_ENTRIES = 2_000_000
_LARGE = 64 * 1024
"""Bytes from which on a pickle's entries are compared instead of taken apart one by one."""
_UNWANTED = ("duration_ms",)
_JSON_MARKS = (b'"pg_status"', b'"pg_config"', b'"profiling_name"', b'"collective_seq_id"')
_PICKLE_MARKS = (b"pg_config", b"profiling_name", b"entries", b"pg_status")
_RANKS = re.compile(r"^\s*\[?[\d,\s]*\]?\s*$")
_RETIRED_IS_DONE = frozenset({"gloo", "mpi", "ucc", "fake"})


def sniff(head: bytes, name: str) -> int:
    """A pickle or JSON that speaks of process groups and entries."""
    if head[:1] == b"\x80" or head[:2] in (b"(d", b"(l") or head[:1] in (b"}", b"]"):
        return 95 if any(mark in head for mark in _PICKLE_MARKS) else 40
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"{", b"["):
        hits = sum(mark in head for mark in _JSON_MARKS)
        if b'"tick_s"' in head and b'"age_s"' in head:
            return 0
        return 95 if hits >= 2 else (70 if hits and b'"version"' in head else 0)
    return 0


def ranks_of(text: object) -> tuple[int, ...]:
    """Ranks of a pg_config entry: a list, or a text such as ``[0, 1]``. () when it is neither."""
    if isinstance(text, list | tuple):
        return tuple(r for r in text if isinstance(r, int) and 0 <= r < 1 << 31)
    if isinstance(text, str) and len(text) <= 8_000_000 and _RANKS.match(text):
        return tuple(int(n) for n in re.findall(r"\d{1,9}", text))
    return ()


def parse(artefact: Artefact) -> Parsed:
    """One RankTrace, or the reason why there is none."""
    errors: list[ReadError] = []
    data, cut = artefact.read()
    if cut:
        errors.append(
            artefact.error(f"larger than {len(data) >> 20} MiB", advice="only its start was read")
        )
    try:
        value, truncated = _decode(data)
    except Refused as err:
        errors.append(artefact.error(f"not a flight-recorder dump: {err}", advice="not loaded"))
        return Parsed(errors=tuple(errors))
    if isinstance(value, list):
        value = {"version": "1.0", "entries": value}
    if not isinstance(value, dict) or not (
        {"entries", "pg_config", "pg_status", "version"} & set(map(_text, value))
    ):
        errors.append(artefact.error("holds no flight-recorder fields", advice="not used"))
        return Parsed(errors=tuple(errors))
    if truncated:
        errors.append(artefact.error("ends too early", advice="what came before the cut was used"))
    return _trace(artefact, value, truncated or cut, errors)


def _decode(data: bytes) -> tuple[Any, bool]:
    body = data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if body[:1] in (b"{", b"["):
        try:
            return msgspec.json.decode(body), False
        except (msgspec.DecodeError, RecursionError, ValueError):
            return _partial_json(body), True
    if len(data) > _LARGE:
        rows = pickle_rows.read(data, "entries", COLUMNS, _UNWANTED)
        if rows is not None:
            rows.value["entries"] = rows
            return rows.value, rows.truncated
    loaded = load(data)
    return loaded.value, loaded.truncated


def _partial_json(body: bytes) -> Any:
    """What a cut JSON dump still tells: its scalars before the entries, and whole entries."""
    text = body.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    out: dict[str, Any] = {}
    for key in ("version", "pg_config", "pg_status", "comm_lib_version", "nccl_version"):
        match = re.search(rf'"{key}"\s*:\s*', text)
        if match:
            try:
                out[key] = decoder.raw_decode(text, match.end())[0]
            except (ValueError, RecursionError):
                continue
    entries: list[Any] = []
    match = re.search(r'"entries"\s*:\s*\[', text)
    at = match.end() if match else (1 if text[:1] == "[" else -1)
    while 0 <= at < len(text) and len(entries) < MAX_ENTRIES:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        entries.append(entry)
    if not out and not entries:
        raise Refused("broken JSON")
    out["entries"] = entries
    return out


def _trace(
    artefact: Artefact, value: dict[Any, Any], truncated: bool, errors: list[ReadError]
) -> Parsed:
    entries = value.get("entries")
    ops: Sequence[Op]
    if isinstance(entries, pickle_rows.Rows):
        ops, names, ids, broken = _columns(entries)
    else:
        entries = entries if isinstance(entries, list) else []
        if len(entries) > MAX_ENTRIES:
            errors.append(
                artefact.error(f"{len(entries)} entries", advice="only the newest were used")
            )
            entries = entries[-MAX_ENTRIES:]
        ops, names, ids, broken = _ops(entries)
    if broken:
        errors.append(artefact.error(f"{broken} entries are malformed", advice="left out"))
    if broken and not ops:
        return Parsed(errors=tuple(errors))  # what cannot be read has not been looked at
    groups = _groups(value.get("pg_config"), names)
    rank = _rank(artefact, groups, ops, errors)
    if rank is None:
        errors.append(
            artefact.error(
                "nothing tells whose dump this is",
                advice="rename it so that it ends with the rank, such as nccl_trace_rank_3",
            )
        )
        return Parsed(errors=tuple(errors))
    source = artefact.source(NAME, rank=rank)
    backends = Counter(ops.backends() if isinstance(ops, OpColumns) else _backends(ops))
    trace = RankTrace(
        source=source,
        rank=rank,
        version=_text(value.get("version"))[:40],
        comm_lib_version=_text(value.get("comm_lib_version") or value.get("nccl_version"))[:40],
        backend=backends.most_common(1)[0][0] if backends else "",
        groups=groups,
        status=_status(value.get("pg_status")),
        group_ids=tuple(sorted(ids.items())),
        ops=ops,
        wrapped=bool(ops) and ops[0].record_id > 0,
        truncated=truncated,
    )
    return Parsed((trace,), tuple(errors), (source,))


def _backends(ops: Iterable[Op]) -> Iterator[str]:
    return (op.backend for op in ops if op.backend)


def _rank(
    artefact: Artefact, groups: tuple[Group, ...], ops: Sequence[Op], errors: list[ReadError]
) -> int | None:
    """The rank by name, checked against the groups; else the only rank that all groups share."""
    named = artefact.hint.rank
    if named is None:
        named = trailing_rank(artefact.name)
    shared: set[int] | None = None
    for group in groups:
        if group.ranks:
            members = set(group.ranks)
            shared = members if shared is None else shared & members
    if named is not None:
        if shared and named not in shared:
            if len(shared) == 1:
                only = next(iter(shared))
                errors.append(
                    artefact.error(
                        f"its name says rank {named}, its groups say rank {only}",
                        advice="the groups were believed",
                    )
                )
                return only
            errors.append(
                artefact.error(
                    f"its name says rank {named}, which is in none of its groups",
                    advice="check that the file belongs to this job",
                )
            )
        return named
    if shared and len(shared) == 1:
        return next(iter(shared))
    by_name = {group.name: group.ranks for group in groups}
    senders: set[int] = set()
    for op in ops:
        if op.is_p2p and op.peer:
            order = by_name.get(op.group, ())
            mine = op.peer[0] if op.op == "send" else op.peer[1]
            senders.add(order[mine] if mine < len(order) else mine)
    return next(iter(senders)) if len(senders) == 1 else None


def _groups(config: Any, names: dict[str, str]) -> tuple[Group, ...]:
    """Groups of pg_config, repaired from the entries where Gloo left only the key ''."""
    out: dict[str, Group] = {}
    lost: tuple[int, ...] = ()
    if isinstance(config, dict):
        for key, item in list(config.items())[:1_000_000]:
            if not isinstance(item, dict):
                continue
            name = _text(key) or _text(item.get("name"))
            members = ranks_of(item.get("ranks"))
            if not name:
                lost = members
                continue
            out[name] = Group(name, _text(item.get("desc"))[:200], members)
    for name, desc in names.items():
        if name not in out:
            # Only a single group can own the ranks of the nameless key.
            out[name] = Group(name, desc, lost if len(names) == 1 else ())
        elif not out[name].desc and desc:
            out[name] = Group(name, desc, out[name].ranks)
    return tuple(out[name] for name in sorted(out, key=lambda n: (not n.isdigit(), len(n), n)))


def _status(status: Any) -> tuple[tuple[str, GroupStatus], ...]:
    if not isinstance(status, dict):
        return ()
    out = []
    for key, item in list(status.items())[:1_000_000]:
        if isinstance(item, dict):
            marks = GroupStatus(
                _int(item.get("last_enqueued_collective"), -1),
                _int(item.get("last_started_collective"), -1),
                _int(item.get("last_completed_collective"), -1),
            )
            out.append((_text(key)[:80], marks))
    return tuple(out)


def _ops(entries: list[Any]) -> tuple[tuple[Op, ...], dict[str, str], dict[str, str], int]:
    """Ops oldest first, group name -> description, group name -> local id, number malformed."""
    timed = _timed(entries)
    ops: list[Op] = []
    names: dict[str, str] = {}
    ids: dict[str, str] = {}
    broken = 0
    memo = _Memo()
    for index, entry in enumerate(entries):
        try:
            op = _op(index, entry, timed, names, ids, memo)
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError):
            op = None
        if op is None:
            broken += 1
        else:
            ops.append(op)
    return _without_twins(ops), names, ids, broken + memo.odd


def _timed(entries: Iterable[Any]) -> bool:
    """Whether the recorder notes starts at all."""
    return any(
        isinstance(e, dict) and (e.get("state") == "started" or "duration_ms" in e) for e in entries
    )


def _columns(rows: pickle_rows.Rows) -> tuple[Sequence[Op], dict[str, str], dict[str, str], int]:
    """Like :func:`_ops`, of rows that were compared: one operation is made for each content."""
    timed = _timed(rows.contents)
    names: dict[str, str] = {}
    ids: dict[str, str] = {}
    memo = _Memo()
    kinds: list[Op | None] = []
    for entry in rows.contents:
        try:
            kinds.append(_op(0, entry, timed, names, ids, memo))
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError):
            kinds.append(None)
    made = OpColumns.of(kinds, rows.rows)
    broken = len(rows.rows) - len(made)
    ops: Sequence[Op] = made
    if any(kind is not None and kind.backend == "c10d" for kind in kinds):
        ops = _without_twins(list(made))
    return ops, names, ids, broken + memo.odd


@dataclass(slots=True)
class _Memo:
    """Equal values of one dump, made once; and how many sizes were nonsense."""

    shapes: dict[Any, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    frames: dict[Any, Frame] = field(default_factory=dict)
    stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = field(default_factory=dict)
    odd: int = 0


MAX_TENSORS = 65536
MAX_DIMS = 64
"""More tensors of one operation, or dimensions of one tensor, are nonsense."""


def _op(
    index: int,
    entry: Any,
    timed: bool,
    names: dict[str, str],
    ids: dict[str, str],
    memo: _Memo,
) -> Op | None:
    get = entry.get
    label = get("profiling_name")
    if not isinstance(label, str):
        return None
    backend, op, peer = split_profiling_name(label[:400])
    local_id = get("pg_id")
    group = get("process_group")
    if isinstance(group, list | tuple) and group:
        name = group[0] if isinstance(group[0], str) else _text(group[0])
        if name not in names:
            names[name] = _text(group[1])[:200] if len(group) > 1 else ""
        if local_id is not None and name not in ids:
            ids[name] = _text(local_id)[:80]
    else:  # torch 2.2 and 2.3 name only the local id
        name = _text(local_id)[:80]
        names.setdefault(name, "")
        ids.setdefault(name, name)
    state = get("state")
    retired = get("retired") is True
    finished = state == "completed" or (retired and backend in _RETIRED_IS_DONE)
    if finished:
        started: bool | None = True
    elif timed:
        started = state == "started"
    else:
        started = None
    seq = get("collective_seq_id")
    p2p = get("is_p2p")
    created = get("time_created_ns")
    if created is None and get("time_created_us"):
        created = _int(get("time_created_us"), 0) * 1000
    raw = get("frames")
    return Op(
        index,
        _int(get("record_id", get("id")), index),
        name,
        _int(get("seq_id") if seq is None else seq, 0),
        op,
        backend,
        _int(get("p2p_seq_id"), 0),
        _int(get("op_id"), 0),
        p2p is True or (p2p is None and op in P2P),
        peer,
        _shapes(get("input_sizes"), memo),
        _shapes(get("output_sizes"), memo),
        _words(get("input_dtypes")),
        _words(get("output_dtypes")),
        finished,
        started,
        retired,
        _time(created),
        _time(get("time_discovered_started_ns")),
        _time(get("time_discovered_completed_ns")),
        _time(get("timeout_ms")),
        _text(get("thread_name") or get("thread_id"))[:80],
        _frames(raw, memo.frames, memo.stacks) if raw else (),
    )


def _shapes(raw: Any, memo: _Memo) -> tuple[tuple[int, ...], ...]:
    """Sizes of each tensor; () when the dump does not say, or says what no tensor can have."""
    if raw is None:
        return ()
    if not isinstance(raw, list | tuple) or len(raw) > MAX_TENSORS:
        memo.odd += 1
        return ()
    for dims in raw:
        if (
            not isinstance(dims, list | tuple)
            or len(dims) > MAX_DIMS
            or any(type(d) is not int or not 0 <= d < 1 << 62 for d in dims)
        ):
            memo.odd += 1
            return ()
    made = tuple([tuple(dims) for dims in raw])
    return memo.shapes.setdefault(made, made)


_DTYPES: dict[tuple[str, ...], tuple[str, ...]] = {}


def _words(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not raw:
        return ()
    words = tuple([w if isinstance(w, str) else _text(w) for w in raw])
    if len(_DTYPES) < 4096:
        return _DTYPES.setdefault(words, words)
    return words


def _frames(
    raw: Any, frames: dict[Any, Frame], stacks: dict[tuple[Frame, ...], tuple[Frame, ...]]
) -> tuple[Frame, ...]:
    """Frames, innermost first as torch writes them."""
    if not isinstance(raw, list | tuple):
        return ()
    out = []
    for one in raw[:500]:
        if not isinstance(one, dict):
            continue
        key = (one.get("name"), one.get("filename"), one.get("line"))
        frame = frames.get(key)
        if frame is None:
            frame = Frame(_text(key[0])[:400], _text(key[1])[:1000], _int(key[2], 0))
            frames[key] = frame
        out.append(frame)
    made = tuple(out)
    return stacks.setdefault(made, made)


def _without_twins(ops: list[Op]) -> tuple[Op, ...]:
    """Drop what a generic hook (``c10d:``) recorded beside the backend's own entry."""
    if not any(op.backend == "c10d" for op in ops) or all(op.backend == "c10d" for op in ops):
        return tuple(ops)
    native = {(op.group, op.seq, op.op.removesuffix("_base")) for op in ops if op.backend != "c10d"}
    return tuple(
        op
        for op in ops
        if op.backend != "c10d"
        or op.is_p2p
        or (op.group, op.seq, op.op.removesuffix("_base")) not in native
    )


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return str(value)
    return ""


def _int(value: Any, default: int) -> int:
    """An int that fits into 64 bits, also from a text of digits; else ``default``."""
    if type(value) is int:
        return value if -(1 << 63) <= value < 1 << 63 else default
    if isinstance(value, str) and len(value) < 22:
        try:
            return int(value)
        except ValueError:
            return default
    if isinstance(value, float) and abs(value) < 1e18:
        return int(value)
    return default


def _time(value: Any) -> int | None:
    """A time; None and 0 both mean unknown."""
    number = _int(value, 0)
    return number if number > 0 else None
