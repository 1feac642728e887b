"""What the driver's own tool says of the GPUs and of who uses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, timed_out

FIELDS = (
    "index,uuid,pci.bus_id,utilization.gpu,utilization.memory,memory.used,clocks.sm,"
    "power.draw,temperature.gpu,pstate"
)
QUERIES: tuple[tuple[str, ...], ...] = (
    (),
    (f"--query-gpu={FIELDS}", "--format=csv"),
    ("--query-compute-apps=pid,gpu_uuid,used_memory,name", "--format=csv"),
    ("-q", "-d", "ECC,ROW_REMAPPER,PAGE_RETIREMENT,PERFORMANCE,CLOCK,POWER"),
    ("nvlink", "-s"),
    ("nvlink", "-e"),
)


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """nvidia-smi.txt: one ``$ command`` section for each query, until one does not return."""
    smi = commands.program("nvidia-smi")
    if smi is None:
        yield absent("no nvidia-smi on this host")
        return
    parts: list[bytes] = []
    bad: list[str] = []
    late = False
    for query in QUERIES:
        ran = commands.run([smi, *query], timeout=target.left(5.0), cap=1 << 20)
        text = ran.out if ran.code == 0 else ran.out + ran.err
        parts.append(b"$ nvidia-smi %s\n%s\n" % (" ".join(query).encode(), text.rstrip()))
        if ran.code is None:
            late = True
            bad.append(ran.why("nvidia-smi " + " ".join(query)).strip())
            break
        if ran.code != 0:
            bad.append(ran.why("nvidia-smi " + (query[0] if query else "")).strip())
    if late and len(parts) == 1:
        yield timed_out(f"{bad[0]}: the driver does not answer")
    elif len(bad) == len(QUERIES):
        yield failed(bad[0])
    else:
        path = out / "nvidia-smi.txt"
        yield target.save(path, b"".join(parts), note="; ".join(bad), partial=bool(bad))


COLLECTOR = Collector(
    name="gpu",
    scope="host",
    tier=2,
    source="gpu",
    needs=("nvidia-smi",),
    deadline_s=12.0,
    collect=collect,
)
