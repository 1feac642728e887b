"""The environment each rank was started with, secrets masked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.masking import mask_environment
from fabwatch.watchdog.capture.outcome import Outcome, failed


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """Sorted ``NAME=value`` lines. What the program changed after its start is not seen."""
    raw = procfs.read(f"/proc/{target.pid}/environ", 2 << 20)
    if not raw:
        yield failed("empty: a zombie, or a process that cleared it")
        return
    items, masked = mask_environment(raw)
    path = out / target.named("env_rank_N.txt")
    yield target.save(path, b"\n".join(sorted(items)) + b"\n", mask=False, masked=masked)


COLLECTOR = Collector(
    name="environment",
    scope="rank",
    tier=2,
    source="environment",
    deadline_s=2.0,
    collect=collect,
)
