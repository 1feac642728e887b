"""The exits of ranks as the watch has seen them so far: a copy of the run's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """No file means that no rank has ended: that, too, was looked at."""
    try:
        data = procfs.read(Path(target.job.run_dir) / "exits.jsonl", 4 << 20)
    except FileNotFoundError:
        yield target.save(out / "exits.jsonl", b"", note="no rank has ended")
        return
    yield target.save(out / "exits.jsonl", data)


COLLECTOR = Collector(
    name="exits", scope="run", tier=1, source="exit", deadline_s=1.0, collect=collect
)
