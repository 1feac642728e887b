"""The uncaught exception of each rank: the probe's record, else torchelastic's error file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import armed
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, not_armed


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """A copy. A rank that runs has raised nothing: absent is what one expects of it."""
    record = Path(target.job.run_dir) / "exceptions" / f"{target.pid}.json"
    path = out / target.named("exception_rank_N.json")
    try:
        yield target.save(path, procfs.read(record, 1 << 20))
        return
    except FileNotFoundError:
        pass
    alive = target.alive()
    if alive:
        error_file = procfs.environ(target.pid).get("TORCHELASTIC_ERROR_FILE", "")
        if error_file:
            try:
                yield target.save(path, procfs.read(error_file, 1 << 20), note="torchelastic's")
                return
            except OSError:
                pass
        yield absent("it has raised nothing that was recorded", expected=True)
    elif not armed.page(target).exists():
        yield not_armed("the probe never ran in this process, so nobody recorded its exception")
    else:
        yield absent("it ended without an uncaught exception that was recorded", expected=True)


COLLECTOR = Collector(
    name="exception",
    scope="rank",
    tier=1,
    source="exception",
    needs=("the probe, or torchelastic's error file",),
    deadline_s=1.5,
    living=False,
    collect=collect,
)
