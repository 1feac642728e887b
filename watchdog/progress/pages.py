"""Keep the ranks' progress pages at hand; parse one only when it has changed."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabwatch.watchdog.progress.page import read_page
from fabwatch.watchdog.ranks import PageClaim

_HEADER = struct.Struct("<8sIIQQQ")
_MAGIC = b"FABWPG1\0"


@dataclass(frozen=True, slots=True)
class PageView:
    """What the watch uses of a page.

    ``counters``: (key, enqueued, started, completed), sorted; () before any group exists.
    ``ticked``: monotonic seconds of the last tick. ``exiting``: the interpreter shuts down.
    """

    pid: int
    rank: int | None
    world_size: int | None
    local_rank: int | None
    attempt: int | None
    counters: tuple[tuple[str, int, int, int], ...]
    ticked: float
    tick_s: float
    exiting: bool
    torch: str = ""
    python: str = ""
    groups: int = 0

    @property
    def pending(self) -> bool:
        """Whether an operation was entered that has not finished."""
        return any(enqueued > completed for _, enqueued, _, completed in self.counters)

    def began_since(self, before: PageView | None) -> bool:
        """Whether an operation was begun since ``before``.

        One that merely ended is no progress: a Gloo operation that times out counts as completed,
        so that a hang would look like a job that moves again just as it dies.
        """
        was = {key: enqueued for key, enqueued, _, _ in before.counters} if before else {}
        return any(enqueued != was.get(key) for key, enqueued, _, _ in self.counters)

    def age(self, now: float) -> float:
        """Seconds since the last tick, at monotonic time ``now``."""
        return max(now - self.ticked, 0.0)

    def stale(self, now: float) -> bool:
        """Whether three ticks were missed."""
        return self.age(now) > 3 * self.tick_s

    def claim(self) -> PageClaim:
        """For finding ranks."""
        return PageClaim(self.pid, self.rank, self.world_size, self.local_rank, self.attempt)


def _int(value: object) -> int | None:
    """An int that is not a bool; numbers in text are taken too."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    return None


def view_of(pid: int, mono_ns: int, payload: Mapping[str, Any]) -> PageView:
    """A view of a payload; whatever has the wrong type is taken as absent."""
    counters = []
    status = payload.get("status")
    if isinstance(status, dict):
        for key, marks in status.items():
            if isinstance(marks, dict):
                three = [_int(marks.get(n)) for n in ("enqueued", "started", "completed")]
                enqueued, started, completed = (-1 if n is None else n for n in three)
                counters.append((str(key), enqueued, started, completed))
    groups = payload.get("groups")
    tick = payload.get("tick_s")
    rank = _int(payload.get("rank"))
    return PageView(
        pid=pid,
        rank=None if rank is None or rank < 0 else rank,
        world_size=_int(payload.get("world_size")),
        local_rank=_int(payload.get("local_rank")),
        attempt=_int(payload.get("attempt")),
        counters=tuple(sorted(counters)),
        ticked=mono_ns / 1e9,
        tick_s=float(tick) if isinstance(tick, (int, float)) and 0.05 <= tick <= 60 else 1.0,
        exiting=payload.get("exiting") is True,
        torch=str(payload.get("torch") or ""),
        python=str(payload.get("python") or ""),
        groups=len(groups) if isinstance(groups, list) else 0,
    )


class Pages:
    """The pages of one run."""

    def __init__(self, folder: Path) -> None:
        """``folder``: <run>/live; it may not exist yet."""
        self.folder = folder
        self._seen: dict[int, tuple[tuple[int, int, int], PageView]] = {}
        self._listed: tuple[int, ...] = ()
        self._stamp = 0
        self._listed_at = 0.0

    def pids(self) -> tuple[int, ...]:
        """Process ids that have a page file, living or not. Lists again when the folder changed."""
        try:
            stamp = self.folder.stat().st_mtime_ns
        except OSError:
            return ()
        now = time.monotonic()
        if stamp != self._stamp or now - self._listed_at > 10:
            self._stamp, self._listed_at = stamp, now
            found = []
            try:
                with os.scandir(self.folder) as entries:
                    for entry in entries:
                        name, _, ext = entry.name.partition(".")
                        if ext == "page" and name.isdigit():
                            found.append(int(name))
            except OSError:
                return self._listed
            self._listed = tuple(found)
        return self._listed

    def get(self, pid: int) -> PageView | None:
        """The page of a process; None when there is none that can be read."""
        path = self.folder / f"{pid}.page"
        known = self._seen.get(pid)
        mark = self._peek(path)
        if mark is None:
            return None
        if known is not None and known[0] == mark:
            return known[1]
        page = read_page(path)
        if page is None:  # broken, or half-written by a rank that was stopped in the middle
            if known is None:
                return None
            self._seen[pid] = (mark, known[1])
            return known[1]
        view = view_of(pid, mark[2], page.payload)
        self._seen[pid] = (mark, view)
        return view

    @staticmethod
    def _peek(path: Path) -> tuple[int, int, int] | None:
        """(sequence, tick, monotonic ns) of the header."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            raw = os.read(fd, _HEADER.size)
        except OSError:
            return None
        finally:
            os.close(fd)
        if len(raw) < _HEADER.size:
            return None
        magic, sequence, _, mono_ns, _, tick = _HEADER.unpack(raw)
        return (sequence, tick, mono_ns) if magic == _MAGIC else None
