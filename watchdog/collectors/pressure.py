"""Pressure stall information, memory and load of the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """pressure.txt with PSI, load and the blocked-process counters; meminfo.txt."""
    parts, missing = [], []
    for name in ("pressure/cpu", "pressure/io", "pressure/memory", "loadavg", "vmstat"):
        try:
            parts.append(b"# /proc/%s\n%s" % (name.encode(), procfs.read(f"/proc/{name}")))
        except OSError as err:
            missing.append(f"{name} ({err.strerror})")
    psi = any(part.startswith(b"# /proc/pressure") for part in parts)
    try:
        yield target.save(out / "meminfo.txt", procfs.read("/proc/meminfo"))
    except OSError as err:
        missing.append(f"meminfo ({err.strerror})")
    if parts:
        note = f"not readable: {', '.join(missing)}" if missing else ""
        yield target.save(out / "pressure.txt", b"".join(parts), note=note, partial=not psi)
    else:
        yield absent(f"not readable: {', '.join(missing)}")


COLLECTOR = Collector(
    name="pressure", scope="host", tier=1, source="pressure", deadline_s=1.0, collect=collect
)
