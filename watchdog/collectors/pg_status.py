"""The progress page of each rank: high-water marks per group, and how old they are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import armed, procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, not_armed
from fabwatch.watchdog.probe.pageformat import SIZE, STALE_TICKS, TICK_S, unpack


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """The payload as it is, with the header's fields, ``taken``, ``age_s`` and ``stale``."""
    page = armed.page(target)
    raw = None
    for attempt in range(20):
        try:
            data = procfs.read(page, SIZE)
        except FileNotFoundError:
            why = target.unarmed(*armed.NAMES)
            yield not_armed(why) if why else _never(target)
            return
        now, taken = time.monotonic_ns(), time.time()
        raw = unpack(data)
        if raw is not None or target.left() < 0.05:
            break
        time.sleep(0.001 * (attempt + 1))
    if raw is None:
        yield failed(f"{page.name} is no progress page, or is being rewritten all the time")
        return
    try:
        payload = json.loads(raw.payload)
        if not isinstance(payload, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as err:
        yield failed(f"{page.name}: payload is no JSON: {err}")
        return
    tick_s = payload.get("tick_s")
    if not isinstance(tick_s, (int, float)) or not 0 < tick_s < 3600:
        tick_s = TICK_S
    age = max(0.0, (now - raw.monotonic_ns) / 1e9)
    shown = {
        **payload,
        "tick": raw.tick,
        "sequence": raw.sequence,
        "monotonic_ns": raw.monotonic_ns,
        "epoch_ns": raw.epoch_ns,
        "taken": taken,
        "age_s": round(age, 3),
        "stale": age > STALE_TICKS * tick_s,
        "alive": target.alive(),
    }
    path = out / target.named("pg_status_rank_N.json")
    yield target.save(path, json.dumps(shown).encode() + b"\n")


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
