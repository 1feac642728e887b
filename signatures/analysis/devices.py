"""Says which GPUs are busy without drawing power: a kernel that spins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import GpuReport

BUSY_PERCENT = 95
LOW_POWER = 0.35
"""Of the power cap. Real kernels on a busy GPU draw far more; an idle one is not busy."""


def look(reports: Iterable[GpuReport], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """Add gpu.spinning. A collective's own kernel spins too, so this blames nobody by itself."""
    for report in reports:
        for gpu in report.gpus:
            if (
                gpu.utilisation is None
                or gpu.power_w is None
                or not gpu.power_cap_w
                or gpu.utilisation < BUSY_PERCENT
                or gpu.power_w > LOW_POWER * gpu.power_cap_w
            ):
                continue
            ranks = sorted({rank_of_pid[p] for p in gpu.pids if p in rank_of_pid})
            host = report.source.host
            facts.add(
                fact(
                    "gpu.spinning",
                    ranks=ranks,
                    hosts=[host] if host else [],
                    devices=[gpu.uuid or f"{host or ''}gpu{gpu.index}"],
                    cites=[report.source.cite()],
                    utilisation=gpu.utilisation,
                    power_w=round(gpu.power_w, 1),
                )
            )
