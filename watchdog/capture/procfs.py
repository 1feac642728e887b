"""Read /proc and cgroup files of one process, raw and bounded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CAP = 1 << 20


def read(path: Path | str, cap: int = CAP) -> bytes:
    """At most ``cap`` bytes of a file. Raises OSError. May block: call it in a child only."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts: list[bytes] = []
        left = cap
        while left > 0:
            part = os.read(fd, min(left, 65536))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


class Stat(NamedTuple):
    """What is needed of /proc/<pid>/stat. ``start_ticks``: since boot, tells pid reuse."""

    pid: int
    comm: str
    state: str
    ppid: int
    start_ticks: int


def stat(pid: int, tid: int | None = None) -> Stat | None:
    """The state of a process or of one of its threads; None when there is no such process."""
    path = PROC / str(pid) / "stat" if tid is None else PROC / f"{pid}/task/{tid}/stat"
    try:
        raw = read(path, 4096)
        head, _, tail = raw.rpartition(b")")
        fields = tail.split()
        number, _, comm = head.partition(b" (")
        return Stat(
            int(number), comm.decode(errors="replace"), fields[0].decode(), int(fields[1]),
            int(fields[19]),
        )  # fmt: skip
    except (OSError, ValueError, IndexError):
        return None


def same(pid: int, start_ticks: int) -> bool:
    """Whether ``pid`` is still the process that started at ``start_ticks`` (0: do not care)."""
    now = stat(pid)
    return now is not None and (not start_ticks or now.start_ticks == start_ticks)


def tasks(pid: int, most: int = 512) -> list[int]:
    """Thread ids, the main thread first, at most ``most``."""
    try:
        found = sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except (OSError, ValueError):
        return []
    return sorted(found, key=lambda tid: tid != pid)[:most]


def children(pid: int, most: int = 256) -> list[int]:
    """Direct children of a process, of all its threads, at most ``most``."""
    found: list[int] = []
    for tid in tasks(pid):
        try:
            found += [int(x) for x in read(PROC / f"{pid}/task/{tid}/children", 65536).split()]
        except (OSError, ValueError):
            continue
    return found[:most]


def tracer(pid: int) -> int:
    """Who traces this process: 0 for nobody or not readable."""
    try:
        for line in read(PROC / str(pid) / "status", 65536).splitlines():
            if line.startswith(b"TracerPid:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def environ(pid: int, cap: int = CAP) -> dict[str, str]:
    """The environment a process was started with; {} when it cannot be read."""
    try:
        raw = read(PROC / str(pid) / "environ", cap)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def mapped(pid: int) -> list[str]:
    """Paths of the files that a process has mapped, sorted, each once. Raises OSError."""
    paths = set()
    for line in read(PROC / str(pid) / "maps", 16 << 20).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/"):
            paths.add(os.fsdecode(fields[5]))
    return sorted(paths)


# ------------------------------------------------------------------ cgroups

_OCTAL = re.compile(r"\\([0-7]{3})")

FILES: dict[str, tuple[str, ...]] = {
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
                if option in FILES:
                    found.setdefault(option, place)
    return found


def cgroup_files(membership: str) -> Iterator[tuple[str, str, Path]]:
    """For the text of /proc/<pid>/cgroup: (cgroup path, file name, file) from leaf to root.

    Ancestors are included: a parent's freezer freezes and a parent's limit kills too.
    """
    places = mounts()
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller not in places or controller not in FILES or not path.startswith("/"):
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
                for name in FILES[controller]:
                    yield "/" + "/".join(parts[:depth]), name, folder / name


def frozen(pid: int) -> bool:
    """Whether the process stands in a frozen cgroup, by either version."""
    try:
        membership = read(PROC / str(pid) / "cgroup", 65536).decode(errors="replace")
    except OSError:
        return False
    for _, name, file in cgroup_files(membership):
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
