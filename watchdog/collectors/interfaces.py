"""Network interfaces of the job's namespace: state, carrier and counters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import commands, network
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, failed

SYSFS = Path("/sys/class/net")
NAMES = ("operstate", "carrier", "carrier_changes", "speed", "duplex", "mtu", "address", "flags")


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """ip_link.txt by ``ip -s -d link``; sysfs_net.txt where ip cannot be had."""
    why = "ip is not installed"
    ip = commands.program("ip")
    entering = network.entering(target)
    if ip is not None:
        ran = commands.run([*entering, ip, "-s", "-d", "link"], timeout=target.left(3.0))
        if ran.code == 0:
            yield target.save(out / "ip_link.txt", ran.out, partial=ran.clipped, mask=False)
            return
        why = ran.why("ip")
    if entering:
        yield failed(f"{why}, and the ranks live in another network namespace")
        return
    lines = from_sysfs(SYSFS)
    if lines:
        path = out / "sysfs_net.txt"
        yield target.save(path, lines, mask=False, note=f"{why}: from sysfs", partial=True)
    else:
        yield failed(f"{why}, and {SYSFS} cannot be read")


def from_sysfs(root: Path) -> bytes:
    """``<interface>/<file> <value>`` lines of every interface."""
    lines: list[bytes] = []
    try:
        folders = sorted(root.iterdir())[:512]
    except OSError:
        return b""
    for folder in folders:
        files = [folder / name for name in NAMES]
        with contextlib.suppress(OSError):
            files += sorted((folder / "statistics").iterdir())
        for file in files:
            try:
                value = procfs.read(file, 4096).strip()
            except OSError:
                continue
            lines.append(b"%s %s" % (str(file.relative_to(root)).encode(), value))
    return b"\n".join(lines) + b"\n" if lines else b""


COLLECTOR = Collector(
    name="interfaces",
    scope="host",
    tier=2,
    source="interfaces",
    needs=("ip",),
    deadline_s=3.5,
    collect=collect,
)
