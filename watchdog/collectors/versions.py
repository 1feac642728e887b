"""Versions of what the host brings: kernel, C library, GPU driver, distribution."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome

FILES = (
    "/proc/version", "/proc/driver/nvidia/version", "/sys/module/nvidia/version",
    "/proc/driver/nvidia/params", "/etc/os-release", "/proc/sys/kernel/core_pattern",
)  # fmt: skip


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """versions.txt: ``# <file>`` sections, those that exist."""
    name, number = platform.libc_ver()
    parts = [f"# libc\n{name} {number}\n# machine\n{platform.machine()}\n".encode()]
    for file in FILES:
        try:
            parts.append(b"# %s\n%s\n" % (file.encode(), procfs.read(file, 65536).rstrip()))
        except OSError:
            continue
    yield target.save(out / "versions.txt", b"".join(parts))


COLLECTOR = Collector(
    name="versions", scope="host", tier=2, source="libraries", deadline_s=2.0, collect=collect
)
