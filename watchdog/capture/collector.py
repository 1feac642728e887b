"""What a collector is, and how those in the folder are found."""

from __future__ import annotations

import functools
import importlib
import json
import math
import pkgutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import files
from fabwatch.watchdog.capture.files import Budget
from fabwatch.watchdog.capture.job import JobView, RankProcess
from fabwatch.watchdog.capture.outcome import Outcome
from fabwatch.watchdog.evidence.vocabulary import SOURCES

Scope = Literal["rank", "host", "run"]


@dataclass(frozen=True, slots=True)
class Target:
    """What one call of a collector is about. ``until``: monotonic seconds, its deadline."""

    job: JobView
    incident: Path
    snapshot: int
    budget: Budget
    until: float
    rank: RankProcess | None = None

    @property
    def process(self) -> RankProcess:
        """The rank's process. Raises TypeError in a collector whose scope is not rank."""
        if self.rank is None:
            raise TypeError("this collector is not about one rank")
        return self.rank

    @property
    def pid(self) -> int:
        """The rank's process id."""
        return self.process.pid

    def named(self, pattern: str) -> str:
        """``pattern`` with N replaced by the rank: ``proc_rank_N.txt``."""
        return pattern.replace("_N", f"_{self.process.rank}")

    def left(self, most: float = math.inf) -> float:
        """Seconds until the deadline, at least 0, at most ``most``."""
        return max(0.0, min(most, self.until - time.monotonic()))

    def alive(self) -> bool:
        """Whether the rank's process is still the one that was seen (a zombie counts)."""
        return procfs.same(self.process.pid, self.process.start_ticks)

    def save(
        self,
        path: Path,
        data: bytes,
        *,
        cap: int = files.CAP,
        mask: bool = True,
        masked: int = 0,
        note: str = "",
        partial: bool = False,
        source: str = "",
    ) -> Outcome:
        """Write an artefact; see :func:`fabwatch.watchdog.capture.files.save`."""
        return files.save(
            self.budget, path, data, cap=cap, mask=mask, masked=masked, note=note,
            partial=partial, source=source,
        )  # fmt: skip

    def fair_share(self, most: int) -> int:
        """Bytes that a large artefact of one rank may have so that every rank gets one."""
        share = self.job.options.budget // (6 * max(1, len(self.job.ranks)))
        return max(64 << 10, min(most, share))

    def unarmed(self, *names: str) -> str:
        """Why one of ``names`` could not be armed for this job; "" if launch.json blames none."""
        return _unarmed(Path(self.job.run_dir) / "launch.json", names)


@dataclass(frozen=True, slots=True)
class Collector:
    """One source of raw evidence.

    ``scope``: called once for each rank, once for the host, or once for the run (its files then
    lie in the incident itself). ``tier`` 1 is taken at once, 2 may take longer. ``source``: the
    vocabulary's name. ``needs``: programs or files without which it has nothing to do, for
    people. ``deadline_s``: for one target. ``perturbs``: what it costs the job, "" for nothing.
    ``at_once``: how many targets at a time, 0 for all. ``first``: what it takes is gone within
    milliseconds when a job unwinds. ``living``: pointless when the rank's process is gone.
    ``undo``: called for a target after its attempt was killed half-way.
    """

    name: str
    scope: Scope
    tier: int
    source: str
    deadline_s: float
    collect: Callable[[Target, Path], Iterable[Outcome]]
    needs: tuple[str, ...] = ()
    perturbs: str = ""
    at_once: int = 0
    first: bool = False
    living: bool = True
    undo: Callable[[Target], None] | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"collector {self.name}: unknown source {self.source!r}")
        if self.tier not in (1, 2):
            raise ValueError(f"collector {self.name}: tier {self.tier} is neither 1 nor 2")


@functools.cache
def collectors() -> tuple[Collector, ...]:
    """All collectors of the folder: those first whose evidence vanishes, last those that disturb.

    Raises ImportError or AttributeError for a file that is no collector: a test finds it.
    """
    package = importlib.import_module("fabwatch.watchdog.collectors")
    found: list[Collector] = []
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            found.append(importlib.import_module(f"{package.__name__}.{info.name}").COLLECTOR)
    return tuple(
        sorted(found, key=lambda one: (not one.first, bool(one.perturbs), one.tier, one.name))
    )


@functools.cache
def _unarmed(launch: Path, names: tuple[str, ...]) -> str:
    try:
        entries = json.loads(procfs.read(launch)).get("armed", [])
        for entry in entries:
            if entry.get("name") in names and not entry.get("armed", True):
                return f"{entry['name']}: {entry.get('reason') or 'not armed'}"
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        pass
    return ""
