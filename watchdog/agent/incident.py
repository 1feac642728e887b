"""One incident: why evidence was frozen, what came of it, and its files."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent.files import read_json, write_json
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger, Status

SCHEMA = "fabwatch.incident/1"
ENDED_WELL = "the job ended well"
RESTARTED = "the launcher restarted the workers"
_TIMEOUT = re.compile(rb'"timeout_ms"\s*:\s*"?(\d+)')


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the diagnosis said, as far as the watch acts on it."""

    outcome: str
    signature: str = ""
    title: str = ""
    ranks: tuple[int, ...] = ()
    timeout_s: float | None = None

    @property
    def diagnosed(self) -> bool:
        """Whether a failure was found."""
        return self.outcome == "diagnosed"


def read_verdict(folder: Path) -> Verdict | None:
    """verdict.json of an incident or run; None when there is none that makes sense."""
    value = read_json(folder / "verdict.json")
    outcome = value.get("outcome")
    if outcome not in ("diagnosed", "waiting", "healthy", "cannot-tell"):
        return None
    first: Any = next(iter(_list(value.get("signatures"))), {})
    culprits = value.get("culprits")
    ranks = _list(culprits.get("ranks")) if isinstance(culprits, dict) else []
    timing = value.get("timing")
    timeout = timing.get("group_timeout_s") if isinstance(timing, dict) else None
    return Verdict(
        outcome,
        str(first.get("id", "")) if isinstance(first, dict) else "",
        str(first.get("title", "")) if isinstance(first, dict) else "",
        tuple(r for r in ranks if type(r) is int),
        float(timeout) if isinstance(timeout, (int, float)) and 0 < timeout < 1e7 else None,
    )


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def shortest_timeout(recording: bytes) -> float | None:
    """The shortest timeout (seconds) in the JSON text of a flight recording, whole or cut."""
    found = [int(m.group(1)[:12]) / 1000 for m in _TIMEOUT.finditer(recording)]
    return min((seconds for seconds in found if seconds > 0), default=None)


def captured_timeout(folder: Path, cap: int = 1 << 20) -> float | None:
    """The shortest timeout (seconds) of operations in captured flight recordings, or None."""
    found = None
    for file in sorted(folder.glob("ranks/*/*_trace_rank_*.json"))[:8]:
        try:
            with file.open("rb") as source:
                data = source.read(cap)
        except OSError:
            continue
        seconds = shortest_timeout(data)
        if seconds is not None and (found is None or seconds < found):
            found = seconds
    return found


def next_folder(incidents: Path) -> Path:
    """Make NNNN, the next in order. Raises OSError."""
    incidents.mkdir(mode=0o700, parents=True, exist_ok=True)
    taken = [int(p.name) for p in incidents.iterdir() if p.name.isdigit()]
    number = max(taken, default=0) + 1
    while True:
        folder = incidents / f"{number:04d}"
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            number += 1
            continue
        return folder


@dataclass
class Incident:
    """An incident under way. Times are epoch seconds.

    ``provisional``: a rank ended with code 0 and nobody knows yet whether that was the normal
    end; if it was, the directory goes.
    """

    folder: Path
    trigger: str
    kind: str
    why: str
    phase: str
    last_progress: float
    detected: float
    still_ranks: tuple[int, ...]
    moving_ranks: tuple[int, ...]
    job: dict[str, Any]
    provisional: bool = False
    ended: str = ""  # how the job ended while this stood
    told_to_end: float | None = None  # when its launcher got a signal while this stood
    captured: float | None = None
    deep: bool = False  # tier 2 was taken
    waited_s: float = 0.0
    longest_wait_s: float = 0.0
    limit_s: float = 0.0
    resolved: bool = False
    resolved_by: str = ""
    limit_passed: bool = False
    unseen: tuple[str, ...] = ()
    verdict: Verdict | None = None
    said: Verdict | None = None
    diagnosed_at: float | None = None
    screen: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether it still stands."""
        return not self.resolved

    def save(self) -> None:
        """Write incident.json. Raises OSError."""
        timing = {"last_progress_to_detect_s": round(self.detected - self.last_progress, 3)}
        if self.captured is not None:
            timing["detect_to_captured_s"] = round(self.captured - self.detected, 3)
            if self.diagnosed_at is not None:
                timing["captured_to_verdict_s"] = round(self.diagnosed_at - self.captured, 3)
        write_json(
            self.folder / "incident.json",
            {
                "schema": SCHEMA,
                "trigger": self.trigger,
                "kind": self.kind,
                "why": self.why,
                "phase": self.phase,
                "last_progress": self.last_progress,
                "detected": self.detected,
                "captured": self.captured,
                "waited_s": round(self.waited_s, 3),
                "longest_wait_s": round(self.longest_wait_s, 3),
                "limit_s": round(self.limit_s, 3),
                "limit_passed": self.limit_passed,
                "still_ranks": list(self.still_ranks),
                "moving_ranks": list(self.moving_ranks),
                "resolved": self.resolved,
                "resolved_by": self.resolved_by,
                "provisional": self.provisional,
                "ended": self.ended,
                "told_to_end": self.told_to_end,
                "unseen": list(self.unseen),
                "notes": self.notes,
                "job": self.job,
                "timing": timing,
            },
        )

    def gap(self, host: str, reason: str) -> None:
        """Say in the ledger what the watch itself could not do."""
        with contextlib.suppress(OSError):
            Ledger().add(
                Evidence(
                    source="exit",
                    status=Status.PARTIAL,
                    host=host,
                    started=time.time(),
                    reason=reason,
                    collector="agent",
                ),
                self.folder / "ledger.jsonl",
            )

    def copy_exits(self, run_dir: Path) -> None:
        """Keep the exits as they stand now. Raises OSError."""
        target = self.folder / "exits.jsonl"
        part = target.with_name(f".exits.{os.getpid()}.part")
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(run_dir / "exits.jsonl", part)
            part.replace(target)

    def drop(self) -> None:
        """Remove the directory of what was no incident."""
        shutil.rmtree(self.folder, ignore_errors=True)


def job_of(
    world_size: int, host: str, ranks: Iterable[Any], started: float | None
) -> dict[str, Any]:
    """The ``job`` field: who is in it, and since when (epoch seconds).

    ``ranks`` are :class:`fabwatch.watchdog.ranks.Rank`.
    """
    return {
        "world_size": world_size,
        "started": started,
        "ranks": [
            {
                "rank": r.rank, "local_rank": r.local_rank, "pid": r.pid, "host": host,
                "attempt": r.attempt,
            }
            for r in ranks
        ],
    }  # fmt: skip
