"""Find the cgroup files that tell of a process, by either version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.procfs import PROC, read

_OCTAL = re.compile(r"\\([0-7]{3})")

NAMES: dict[str, tuple[str, ...]] = {
    "freezer": ("freezer.state", "freezer.self_freezing", "freezer.parent_freezing"),
    "memory": (
        "memory.oom_control", "memory.failcnt", "memory.limit_in_bytes", "memory.usage_in_bytes",
    ),
    "cpu": ("cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "pids": ("pids.current", "pids.max"),
    "": (
        "cgroup.freeze", "cgroup.events", "memory.events", "memory.events.local",
        "memory.current", "memory.max", "cpu.stat", "cpu.max", "pids.current", "pids.max",
    ),
}  # fmt: skip
"""Files that tell of each hierarchy, by controller; "" is version 2."""


def mounts() -> dict[str, tuple[Path, str]]:
    """Controller ("" for version 2) -> its mount point and the cgroup at the mount's root."""
    found: dict[str, tuple[Path, str]] = {}
    try:
        lines = read(PROC / "self/mountinfo").decode(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        place = (Path(_OCTAL.sub(lambda m: chr(int(m[1], 8)), fields[4])), fields[3])
        if kind[0] == "cgroup2":
            found.setdefault("", place)
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in NAMES:
                    found.setdefault(option, place)
    return found


def files(membership: str) -> Iterator[tuple[str, str, Path]]:
    """For the text of /proc/<pid>/cgroup: (cgroup path, file name, file) from leaf to root.

    Ancestors are included: a parent's freezer freezes and a parent's limit kills too.
    """
    places = mounts()
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller not in places or controller not in NAMES or not path.startswith("/"):
                continue
            mount, root = places[controller]
            if root != "/" and not (path + "/").startswith(root.rstrip("/") + "/"):
                root = "/"  # another cgroup namespace: the path is relative to the mount
            inside = path[len(root.rstrip("/")) :].strip("/")
            parts = [p for p in inside.split("/") if p]
            if ".." in parts:
                continue
            for depth in range(len(parts), -1, -1):
                folder = mount.joinpath(*parts[:depth])
                for name in NAMES[controller]:
                    yield "/" + "/".join(parts[:depth]), name, folder / name


def frozen(pid: int) -> bool:
    """Whether the process stands in a frozen cgroup, by either version."""
    try:
        membership = read(PROC / str(pid) / "cgroup", 65536).decode(errors="replace")
    except OSError:
        return False
    for _, name, file in files(membership):
        try:
            if name == "freezer.state" and read(file, 64).strip() in (b"FROZEN", b"FREEZING"):
                return True
            if name == "cgroup.events" and b"frozen 1" in read(file, 4096):
                return True
            if name == "cgroup.freeze" and read(file, 64).strip() == b"1":
                return True
        except OSError:
            continue
    return False
