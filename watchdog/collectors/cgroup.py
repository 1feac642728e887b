"""Cgroups of the launcher and below: what is left of ranks that the kernel has killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import cgroups, procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent
from fabwatch.watchdog.collectors.process import cgroup_sections

MOST = 200


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """cgroup.txt: sections as in proc_rank_N.txt, for the launcher's cgroups and their children."""
    pid = target.job.launcher_pid
    if pid is None:
        yield absent("the launcher is not known")
        return
    try:
        membership = procfs.read(f"/proc/{pid}/cgroup").decode(errors="replace")
    except OSError as err:
        yield absent(f"launcher {pid}: {err.strerror}")
        return
    text = cgroup_sections("\n".join([membership, *below(membership)]))
    if text:
        yield target.save(out / "cgroup.txt", text, mask=False)
    else:
        yield absent("no cgroup file of the launcher can be read")


def below(membership: str) -> list[str]:
    """Membership lines of the cgroups under those of ``membership``, none for a root."""
    places = cgroups.mounts()
    lines: list[str] = []
    for line in membership.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.strip("/") == "" or ".." in path.split("/"):
            continue
        for controller in controllers.split(","):
            if controller not in places or controller not in ("", "memory", "freezer"):
                continue
            mount, root = places[controller]
            inside = path.removeprefix(root.rstrip("/")).strip("/")
            top = mount / inside
            for folder in sorted(top.rglob("*/"))[:MOST]:
                if folder.is_dir():
                    name = str(folder.relative_to(mount))
                    lines.append(f"{number}:{controller}:{root.rstrip('/')}/{name}")
    return lines


COLLECTOR = Collector(
    name="cgroup", scope="host", tier=1, source="cgroup", deadline_s=2.0, collect=collect
)
