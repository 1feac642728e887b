"""Read a rank's progress page: what it was doing at its last tick, how long ago, and whether stale.

The page is written by the probe (:mod:`fabwatch.watchdog.probe`); its layout is in
docs/interfaces.md. Nothing here raises for what a file may hold.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabwatch.watchdog.evidence.observations import Group, GroupStatus
from fabwatch.watchdog.probe import pageformat

_TRIES = 20
_PAUSE_S = 0.002


@dataclass(frozen=True, slots=True)
class Page:
    """One page. ``rank`` is -1 if the payload says none.

    ``age_s`` counts seconds from the rank's last tick to the moment of reading; ``stale`` is True
    when that is more than three ticks: no Python thread could run there (GIL held, stopped,
    frozen), or its storage hangs. ``initialised`` is False before the default group exists and
    after it was destroyed; while ``proved`` is False, ``rank`` is only what the environment claims
    (a launcher may have inherited a RANK).
    ``payload`` is the JSON as written, with ``ranks`` of long groups filled in.
    """

    path: str
    pid: int
    rank: int
    tick: int
    sequence: int
    epoch_s: float
    age_s: float
    stale: bool
    world_size: int | None = None
    local_rank: int | None = None
    attempt: int = 0
    torch_version: str = ""
    python_version: str = ""
    initialised: bool = False
    proved: bool = False
    exiting: bool = False
    main_alive: bool = True
    server: str = ""
    control: str = ""
    cost_us: int | None = None
    groups: tuple[Group, ...] = ()
    status: tuple[tuple[str, GroupStatus], ...] = ()
    payload: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def artefact(self) -> dict[str, Any]:
        """What pg_status_rank_N.json holds: payload, header fields, ``age_s`` and ``stale``."""
        return {
            **self.payload,
            "tick": self.tick,
            "epoch_s": self.epoch_s,
            "age_s": round(self.age_s, 3),
            "stale": self.stale,
        }


def _int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return int(value)
    except ValueError:
        return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _ranks(item: dict[str, Any]) -> tuple[int, ...]:
    """The members of one group; () when the page lost them."""
    bounds = item.get("range")
    if isinstance(bounds, list) and len(bounds) == 3:
        start, stop, step = (_int(bound) for bound in bounds)
        if start is not None and stop is not None and step:
            members = range(start, stop, step)
            return tuple(members) if len(members) <= 1 << 20 else ()
    listed = item.get("ranks")
    if not isinstance(listed, list):
        return ()
    numbers = tuple(_int(member) for member in listed)
    return tuple(n for n in numbers if n is not None) if None not in numbers else ()


def _groups(payload: dict[str, Any]) -> tuple[Group, ...]:
    """The groups of the payload; ranges are written out in it as well."""
    found = []
    listed = payload.get("groups")
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, dict):
            ranks = _ranks(item)
            item["ranks"] = list(ranks)
            found.append(Group(_text(item.get("name")), _text(item.get("desc")), ranks))
    return tuple(found)


def _status(payload: dict[str, Any]) -> tuple[tuple[str, GroupStatus], ...]:
    found = []
    listed = payload.get("status")
    for key, marks in listed.items() if isinstance(listed, dict) else ():
        if isinstance(marks, dict):
            numbers = [_int(marks.get(name)) for name in ("enqueued", "started", "completed")]
            found.append((str(key), GroupStatus(*(-1 if n is None else n for n in numbers))))
    return tuple(found)


def _read(path: Path) -> bytes | None:
    """At most one page of bytes; None if there is no such regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return os.pread(fd, pageformat.SIZE, 0)
    except OSError:
        return None
    finally:
        os.close(fd)


def read_page(path: Path | str, *, now_ns: int | None = None) -> Page | None:
    """The page at ``path``, or None if it is absent, garbage, or never whole within about 40 ms.

    ``now_ns`` is CLOCK_MONOTONIC in nanoseconds, default now. A page from before a reboot or from
    another host is aged by wall clock.
    """
    path = Path(path)
    previous: pageformat.Raw | None = None
    for turn in range(_TRIES):
        data = _read(path)
        if data is None:
            return None
        raw = pageformat.unpack(data)
        if raw is not None and raw == previous:
            return decode(raw, str(path), now_ns)
        if raw is None and turn:
            if data[:8] != pageformat.MAGIC:
                return None
            time.sleep(_PAUSE_S)
        previous = raw
    return None


def decode(raw: pageformat.Raw, path: str, now_ns: int | None = None) -> Page | None:
    """The page that ``raw`` holds; None if its payload is no JSON object of ours."""
    try:
        payload = json.loads(raw.payload)
    except (ValueError, RecursionError):
        return None
    pid = _int(payload.get("pid")) if isinstance(payload, dict) else None
    if pid is None:
        return None
    age = ((time.monotonic_ns() if now_ns is None else now_ns) - raw.monotonic_ns) / 1e9
    if age < -1.0:
        age = time.time() - raw.epoch_ns / 1e9
    age = max(age, 0.0)
    tick_s = payload.get("tick_s")
    known = isinstance(tick_s, (int, float)) and not isinstance(tick_s, bool)
    tick_s = float(tick_s) if known and 0 < tick_s < 3600 else pageformat.TICK_S
    rank = _int(payload.get("rank"))
    return Page(
        path=path,
        pid=pid,
        rank=-1 if rank is None else rank,
        tick=raw.tick,
        sequence=raw.sequence,
        epoch_s=raw.epoch_ns / 1e9,
        age_s=age,
        stale=age > pageformat.STALE_TICKS * tick_s,
        world_size=_int(payload.get("world_size")),
        local_rank=_int(payload.get("local_rank")),
        attempt=_int(payload.get("attempt")) or 0,
        torch_version=_text(payload.get("torch")),
        python_version=_text(payload.get("python")),
        initialised=payload.get("initialised") is True,
        proved=payload.get("rank_from") == "group",
        exiting=payload.get("exiting") is True,
        main_alive=payload.get("main_alive") is not False,
        server=_text(payload.get("server")),
        control=_text(payload.get("control")),
        cost_us=_int(payload.get("cost_us")),
        groups=_groups(payload),
        status=_status(payload),
        payload=payload,
    )
