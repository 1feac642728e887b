"""What /proc and the cgroups say of each rank: state, wait channel, counters, children."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import cgroups, procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed

# cmdline, environ and maps take the process' memory lock and can block for ever: not here.
FILES = ("stat", "status", "wchan", "syscall", "io", "cgroup", "stack", "limits", "schedstat")
CHILD_FILES = ("stat", "status", "wchan", "cgroup")
TASK_FILES = ("comm", "stat", "wchan", "stack")


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """One artefact, two ledger lines: the process and its cgroups."""
    pid = target.pid
    alive = target.alive()
    parts: list[bytes] = []
    refused: list[str] = []
    membership = target.process.cgroups
    if alive:
        for name in FILES:
            parts += _section(f"/proc/{pid}/{name}", refused)
        for tid in procfs.tasks(pid):
            for name in TASK_FILES:
                parts += _section(f"/proc/{pid}/task/{tid}/{name}", [])
        for child in procfs.children(pid, most_threads=512) or ():
            for name in CHILD_FILES:
                parts += _section(f"/proc/{child}/{name}", [])
        try:
            now = procfs.read(f"/proc/{pid}/cgroup").decode(errors="replace")
            # The kernel moves an ended process to the root; where it lived matters more.
            if not _ended(pid) or not membership:
                membership = now
        except OSError as err:
            refused.append(f"cgroup: {err.strerror}")
    groups = cgroup_sections(membership)
    # What is left of a dead process is no account of a process.
    path = out / target.named("proc_rank_N.txt" if parts else "cgroup_rank_N.txt")
    if not parts and not groups:
        yield absent(f"process {pid} has ended")
        yield absent("where it ran was not known before it ended", "cgroup")
        return
    note = f"not readable: {', '.join(refused)}" if refused else ""
    saved = target.save(path, b"".join(parts) + groups, note=note, mask=False)
    if parts:
        if alive and not any(part.startswith(b"# /proc/%d/stat\n" % pid) for part in parts):
            saved = failed(note or "nothing of /proc could be read")
        yield saved
    else:
        yield absent(f"process {pid} has ended")
    if groups:
        yield Outcome(
            saved.status, saved.path, saved.sha256, saved.size, saved.reason, source="cgroup"
        )
    else:
        yield absent("no cgroup file of it can be read", "cgroup")


def _ended(pid: int) -> bool:
    now = procfs.stat(pid)
    return now is None or now.state in "ZX"


def _section(name: str, refused: list[str]) -> list[bytes]:
    try:
        data = procfs.read(name, 256 << 10)
    except OSError as err:
        refused.append(f"{name.rpartition('/')[2]} ({err.strerror})")
        return []
    end = b"" if data.endswith(b"\n") or not data else b"\n"
    return [b"# %s\n" % name.encode(), data, end]


def cgroup_sections(membership: str) -> bytes:
    """``# cgroup <path> <file>`` and its text, for the cgroup and each of its ancestors."""
    parts: list[bytes] = []
    seen: set[Path] = set()
    for path, name, file in cgroups.files(membership):
        if file in seen:
            continue
        seen.add(file)
        try:
            data = procfs.read(file, 16 << 10)
        except OSError:
            continue
        if data and not data.endswith(b"\n"):
            data += b"\n"
        parts.append(b"# cgroup %s %s\n" % (path.encode(errors="surrogateescape"), name.encode()))
        parts.append(data)
    return b"".join(parts)


COLLECTOR = Collector(
    name="process",
    scope="rank",
    tier=1,
    source="process",
    deadline_s=2.0,
    living=False,
    collect=collect,
)
