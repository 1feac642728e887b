"""The progress page of each rank: high-water marks per group, and how old they are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import armed
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, not_armed
from fabwatch.watchdog.progress.page import read_page


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """The payload with the header's fields, ``taken``, ``age_s`` and ``stale``."""
    path = armed.page(target)
    page = read_page(path)
    if page is None:
        if path.exists():
            yield failed(f"{path.name} is no progress page, or never whole while it was read")
            return
        why = target.unarmed(*armed.NAMES)
        yield not_armed(why) if why else _never(target)
        return
    shown = {**page.artefact(), "taken": time.time(), "alive": target.alive()}
    text = json.dumps(shown).encode() + b"\n"
    yield target.save(out / target.named("pg_status_rank_N.json"), text)


def _never(target: Target) -> Outcome:
    if not target.job.sockets:
        return not_armed("the job was started without the probe")
    if not target.alive():
        return absent(f"process {target.pid} has ended and left no progress page")
    return not_armed(
        "no progress page: the probe does not run in this process (environment not handed down, "
        "python -I/-E/-S, or torch.distributed not imported)"
    )


COLLECTOR = Collector(
    name="pg-status",
    scope="rank",
    tier=1,
    source="pg-status",
    needs=("the probe",),
    deadline_s=1.0,
    living=False,
    collect=collect,
)
