"""Read /proc files of one process: bounded, and None or nothing for a process that is gone.

The watch polls some of them several times a second, hence the few system calls.
"""

from __future__ import annotations

import os
from collections.abc import Collection
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


def read_once(path: str, size: int = 4096) -> bytes:
    """The first read of at most ``size`` bytes, for files that come in one. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


class Stat(NamedTuple):
    """/proc/<pid>/stat, as far as anybody needs it.

    ``cpu_ticks``: user and system time (of the whole process, or of the thread). ``start_ticks``:
    since boot, tells pid reuse. ``exit_status``: a wait status, meaningful in state Z or X only.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    cpu_ticks: int
    start_ticks: int
    exit_status: int


def stat(pid: int, tid: int | None = None) -> Stat | None:
    """The state of a process or of one of its threads; None when there is no such process."""
    try:
        path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
        head, _, tail = read_once(path).rpartition(b")")
        f = tail.split()
        number, _, comm = head.partition(b" (")
        return Stat(
            int(number), comm.decode(errors="replace"), f[0].decode(), int(f[1]), int(f[3]),
            int(f[11]) + int(f[12]), int(f[19]), int(f[49]) if len(f) > 49 else 0,
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


def run_ns(pid: int) -> int | None:
    """Nanoseconds that the main thread ran on a CPU; None where the kernel does not count it."""
    try:
        return int(read_once(f"/proc/{pid}/schedstat", 128).split()[0])
    except (OSError, ValueError, IndexError):
        return None


def io_bytes(pid: int) -> int | None:
    """Bytes that went through read and write calls; None when that may not be read."""
    try:
        total = 0
        for line in read_once(f"/proc/{pid}/io", 512).splitlines():
            if line.startswith((b"rchar:", b"wchar:")):
                total += int(line.split()[1])
        return total
    except (OSError, ValueError, IndexError):
        return None


def thread_count(pid: int) -> int:
    """How many threads a process has; 0 when it is gone."""
    try:
        return max(os.stat(f"/proc/{pid}/task").st_nlink - 2, 0)  # noqa: PTH116 - hot path
    except OSError:
        return 0


def children(pid: int, most_threads: int = 32) -> list[int] | None:
    """Direct children of a process; None where the kernel has no such file.

    Each thread has a list of its own. Beyond ``most_threads`` only the main thread's is read:
    a process with more threads is a rank, and what its threads start are helpers, not ranks.
    """
    threads = thread_count(pid)
    if threads == 1 or threads > most_threads:
        tids = [str(pid)]
    else:
        try:
            tids = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - hot path
        except OSError:
            return []
    found: list[int] = []
    for tid in tids:
        try:
            found += map(int, read(f"/proc/{pid}/task/{tid}/children").split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{tid}/stat"):  # noqa: PTH110 - hot path
                return None
        except (OSError, ValueError):
            continue
    return found


def tracer(pid: int) -> int:
    """Who traces this process: 0 for nobody or not readable."""
    try:
        for line in read(f"/proc/{pid}/status", 65536).splitlines():
            if line.startswith(b"TracerPid:"):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def environ(pid: int, names: Collection[bytes] = ()) -> dict[str, str]:
    """The environment that a process was started with; only ``names`` of it, if any are given."""
    try:
        raw = read(f"/proc/{pid}/environ")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals and (not names or name in names):
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def command(pid: int) -> list[str]:
    """The argument vector; [] when it cannot be read or the process is a zombie."""
    try:
        raw = read_once(f"/proc/{pid}/cmdline", 8192)
    except OSError:
        return []
    return [os.fsdecode(part) for part in raw.split(b"\0")[:-1]]


def program(pid: int) -> str:
    """The base name of the executable file; "" when it cannot be read."""
    try:
        target = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - hot path
    except OSError:
        return ""
    return target.removesuffix(" (deleted)").rpartition("/")[2]


def own_processes() -> list[int]:
    """All process ids whose owner is the caller's effective user."""
    me = os.geteuid()
    found = []
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit():
                try:
                    if entry.stat().st_uid == me:
                        found.append(int(entry.name))
                except OSError:
                    continue
    return found


def mapped(pid: int) -> list[str]:
    """Paths of the files that a process has mapped, sorted, each once. Raises OSError."""
    paths = set()
    for line in read(f"/proc/{pid}/maps", 16 << 20).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[5].startswith(b"/"):
            paths.add(os.fsdecode(fields[5]))
    return sorted(paths)
