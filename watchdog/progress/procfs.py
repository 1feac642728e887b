"""Read the few /proc files that the watch polls, with as few system calls as possible."""

from __future__ import annotations

import os
from typing import NamedTuple


def read(path: str, size: int = 4096) -> bytes:
    """One read of at most ``size`` bytes. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def read_all(path: str, cap: int = 1 << 20) -> bytes:
    """At most ``cap`` bytes of a file that may need several reads. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
    """/proc/<pid>/stat, as far as the watch needs it.

    ``cpu_ticks``: user and system time of the whole process. ``start_ticks``: since boot, tells
    pid reuse. ``exit_status``: a wait status, meaningful in state Z or X only.
    """

    pid: int
    comm: str
    state: str
    ppid: int
    session: int
    cpu_ticks: int
    start_ticks: int
    exit_status: int


def stat(pid: int) -> Stat | None:
    """The state of a process; None when there is no such process."""
    try:
        head, _, tail = read(f"/proc/{pid}/stat").rpartition(b")")
        f = tail.split()
        comm = head.partition(b" (")[2].decode(errors="replace")
        return Stat(
            pid, comm, f[0].decode(), int(f[1]), int(f[3]), int(f[11]) + int(f[12]), int(f[19]),
            int(f[49]) if len(f) > 49 else 0,
        )  # fmt: skip
    except (OSError, ValueError, IndexError):
        return None


def run_ns(pid: int) -> int | None:
    """Nanoseconds that the main thread ran on a CPU; None where the kernel does not count it."""
    try:
        return int(read(f"/proc/{pid}/schedstat", 128).split()[0])
    except (OSError, ValueError, IndexError):
        return None


def io_bytes(pid: int) -> int | None:
    """Bytes that went through read and write calls; None when that may not be read."""
    try:
        total = 0
        for line in read(f"/proc/{pid}/io", 512).splitlines():
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
            found += map(int, read_all(f"/proc/{pid}/task/{tid}/children").split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/{pid}/task/{tid}/stat"):  # noqa: PTH110 - hot path
                return None
        except (OSError, ValueError):
            continue
    return found


def environ(pid: int, names: frozenset[bytes]) -> dict[str, str]:
    """The variables of ``names`` in the environment that a process was started with."""
    try:
        raw = read_all(f"/proc/{pid}/environ")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, equals, value = item.partition(b"=")
        if equals and name in names:
            found.setdefault(os.fsdecode(name), os.fsdecode(value))
    return found


def command(pid: int) -> list[str]:
    """The argument vector; [] when it cannot be read or the process is a zombie."""
    try:
        raw = read(f"/proc/{pid}/cmdline", 8192)
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
