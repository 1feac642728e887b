"""Take one look at every rank: page counters, CPU time, I/O, state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fabwatch.watchdog import cgroups, procfs
from fabwatch.watchdog.progress.pages import PageView

_TICK_NS = 10_000_000


@dataclass(frozen=True, slots=True)
class Sample:
    """One rank at one moment.

    ``page``: None when the process has none. ``run_ns``: CPU time of the main thread (of the
    process, in ticks, where the kernel does not count threads). ``cpu_ns``: of the whole process.
    ``frozen``: None when it was not looked at (a process that runs is not asked).
    """

    rank: int
    pid: int
    page: PageView | None
    run_ns: int
    cpu_ns: int
    io_bytes: int
    state: str
    frozen: bool | None = None


def sample(rank: int, pid: int, page: PageView | None, *, ask_frozen: bool) -> Sample | None:
    """Look at one process; None when it is gone."""
    stat = procfs.stat(pid)
    if stat is None:
        return None
    run = procfs.run_ns(pid)
    cpu = stat.cpu_ticks * _TICK_NS
    return Sample(
        rank=rank,
        pid=pid,
        page=page,
        run_ns=cpu if run is None else run,
        cpu_ns=cpu,
        io_bytes=procfs.io_bytes(pid) or 0,
        state=stat.state,
        frozen=cgroups.frozen(pid) if ask_frozen else None,
    )


def stopped(pids: Iterable[int]) -> bool:
    """Whether any of these processes is stopped (the user's Ctrl-Z stops the launcher too)."""
    return any((s := procfs.stat(pid)) is not None and s.state == "T" for pid in pids)
