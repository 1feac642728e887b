"""Tell from kernel counters whether the OOM killer ended a process."""

from __future__ import annotations

from pathlib import Path

from fabwatch.watchdog import cgroups, procfs

_COUNTERS = ("memory.events.local", "memory.events", "memory.oom_control")


def _count(path: str) -> int | None:
    """The ``oom_kill`` line of a counter file; None when there is none."""
    try:
        for line in procfs.read_once(path).splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
    except (OSError, ValueError):
        pass
    return None


def _machine_count() -> int | None:
    """OOM kills of the whole machine since boot, those inside cgroups included."""
    try:
        for line in procfs.read("/proc/vmstat").splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def counter_file(membership: str) -> str | None:
    """The counter of OOM kills of a process's own memory cgroup; None when there is none.

    ``membership``: the text of /proc/<pid>/cgroup.
    """
    leaf: dict[str, Path] = {}
    for _, name, file in cgroups.files(membership):
        if name in _COUNTERS:
            leaf.setdefault(name, file)  # the leaf comes first
    for name in _COUNTERS:
        if name in leaf and _count(str(leaf[name])) is not None:
            return str(leaf[name])
    return None


class OomWatch:
    """Counts as they stood while a process lived, to compare with at its end."""

    def __init__(self) -> None:
        self._memberships: dict[int, bytes] = {}
        self._files: dict[bytes, str | None] = {}
        self._counts: dict[str, int] = {}
        self._machine: int | None = _machine_count()

    def refresh(self, pids: list[int]) -> None:
        """Note where the counters of these processes are: jobs move between cgroups."""
        for pid in pids:
            self._file_of(pid)
        self._machine = _machine_count()

    def _file_of(self, pid: int) -> tuple[str | None, bool]:
        """The counter's path, and whether it was known before (so that a change means a kill)."""
        try:
            membership = procfs.read_once(f"/proc/{pid}/cgroup", 16384)
        except OSError:
            membership = b""
        if not membership or b"(deleted)" in membership:
            membership = self._memberships.get(pid, b"")
        self._memberships[pid] = membership
        known = membership in self._files
        if not known:
            self._files[membership] = counter_file(membership.decode(errors="replace"))
        file = self._files[membership]
        if file is not None and file not in self._counts:
            self._counts[file] = _count(file) or 0
        return file, known

    def killed(self, pid: int) -> bool | None:
        """Whether an OOM kill explains the SIGKILL of ``pid``; each kill is counted once.

        None when the counters cannot tell: the machine counted a kill, and the process's own
        cgroup has no counter.
        """
        before, machine = self._machine, _machine_count()
        self._machine = machine
        rose = machine is None or before is None or machine > before
        # A process that has ended reads as a member of the root cgroup (version 1): where it
        # lived when it was last seen counts first.
        lived = self._memberships.get(pid)
        seen = self._files.get(lived) if lived is not None else None
        if seen is not None and (now := _count(seen)) is not None and now > self._counts[seen]:
            self._counts[seen] += 1
            self._memberships.pop(pid, None)
            return True
        file, known = self._file_of(pid)
        self._memberships.pop(pid, None)
        now = _count(file) if file is not None else None
        if file is None or now is None:
            return None if rose else False
        if known:
            if now > self._counts[file]:
                self._counts[file] += 1
                return True
            # The machine's own count rose, and no cgroup that is known took it: nobody can say.
            return None if rose and machine is not None and before is not None else False
        # It was moved here after the last look, so the count may be older than this end.
        return bool(now) and machine is not None and before is not None and machine > before
