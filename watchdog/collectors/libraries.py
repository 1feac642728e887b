"""The libraries that each rank has really mapped, with versions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.libraries import MATTER, version
from fabwatch.watchdog.capture.outcome import Outcome, absent


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """One path a line, then a tab and the version if anything tells it."""
    paths = [path for path in procfs.mapped(target.pid) if MATTER.search(path)]
    if not paths:
        yield absent("nothing that matters is mapped")
        return
    lines = [f"{path}\t{version(path)}".rstrip() for path in paths]
    path = out / target.named("libraries_rank_N.txt")
    yield target.save(path, os.fsencode("\n".join(lines) + "\n"), mask=False)


COLLECTOR = Collector(
    name="libraries", scope="rank", tier=2, source="libraries", deadline_s=3.0, collect=collect
)
