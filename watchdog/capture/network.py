"""See the network as the ranks see it, also when they live in another namespace."""

from __future__ import annotations

from pathlib import Path

from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import Target


def witness(target: Target) -> str:
    """A pid whose network is the job's: the first rank that lives, else the caller's own."""
    for rank in target.job.ranks:
        if Path(f"/proc/{rank.pid}/ns/net").exists():
            return str(rank.pid)
    return "self"


def entering(target: Target) -> list[str]:
    """What to put before a command so that it runs in the job's network namespace; [] if in it."""
    pid = witness(target)
    try:
        if Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink():
            return []
    except OSError:
        return []
    nsenter = commands.program("nsenter")
    return [nsenter, f"--net=/proc/{pid}/ns/net", "--"] if nsenter else []
