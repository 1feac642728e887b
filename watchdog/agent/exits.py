"""See ranks end, at once and in order, although they are somebody else's children."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import struct
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fabwatch.watchdog import procfs
from fabwatch.watchdog.agent.oom import OomWatch
from fabwatch.watchdog.ranks import Rank

VICTIM_WINDOW_S = 45.0
"""How long after a first failure a SIGTERM or SIGKILL counts as the launcher's work."""

RESERVE = 24
"""Descriptors that the agent keeps for everything but ranks."""

_INFO_SIZE = 64  # PIDFD_INFO_SIZE_VER0
_PIDFD_GET_INFO = (3 << 30) | (_INFO_SIZE << 16) | (0xFF << 8) | 11
_MASK_EXIT = 1 << 3


class ExitLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of exits.jsonl. ``code`` and ``signal`` are both None when nobody could look.

    ``how``: stat (zombie), pidfd (kernel's record after reaping), unseen. ``when``: epoch
    seconds. ``ours``: the launcher had already begun to end the job. ``oom_killed``: None when no
    counter could be read.
    """

    rank: int
    pid: int
    code: int | None
    signal: int | None
    when: float
    order: int
    ours: bool
    how: str
    attempt: int = 0
    oom_killed: bool | None = None
    start_ticks: int = 0

    @property
    def abnormal(self) -> bool:
        """Whether this is a failure by itself (a code that nobody saw is none)."""
        return bool(self.code) or self.signal is not None

    @property
    def clean(self) -> bool:
        """Whether it ended with code 0."""
        return self.code == 0


def status_of(pidfd: int, pid: int, start_ticks: int) -> tuple[int | None, str]:
    """(wait status, how it was seen) of a process that has ended."""
    stat = procfs.stat(pid)
    if stat is not None and stat.start_ticks == start_ticks and stat.state in "ZX":
        return stat.exit_status, "stat"
    info = bytearray(_INFO_SIZE)
    struct.pack_into("=Q", info, 0, _MASK_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info, True)
    except OSError:
        return None, "unseen"
    (mask,) = struct.unpack_from("=Q", info, 0)
    if not mask & _MASK_EXIT:
        return None, "unseen"
    (status,) = struct.unpack_from("=i", info, 60)
    return status, "pidfd"


def by_launcher(code: int | None, number: int | None) -> bool:
    """Whether an end looks like that of a victim: SIGTERM or SIGKILL, or codes that shells make."""
    return number in (signal.SIGTERM, signal.SIGKILL) or code in (143, 137)


class ExitWatch:
    """Descriptors of the ranks' processes, and what is known of those that ended."""

    def __init__(self, file: Path) -> None:
        """``file``: exits.jsonl of the run; each line is appended in one write."""
        self.file = file
        self.full = False  # a rank could not be watched for want of descriptors
        self.ended: list[ExitLine] = []
        self.watched: dict[int, Rank] = {}
        self.oom = OomWatch()
        self._first_failure: dict[int, float] = {}  # attempt -> when

    def add(self, rank: Rank) -> int | None:
        """Watch a rank; returns the descriptor to poll, None when it has ended unseen."""
        if any(
            known.pid == rank.pid and known.start_ticks == rank.start_ticks
            for known in self.watched.values()
        ):
            return None
        try:
            fd = os.pidfd_open(rank.pid)
        except OSError as err:
            self.full = self.full or err.errno in (errno.EMFILE, errno.ENFILE)
            return None
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft != resource.RLIM_INFINITY and fd >= soft - RESERVE:
            os.close(fd)  # else nothing could be read, captured or diagnosed any more
            self.full = True
            return None
        stat = procfs.stat(rank.pid)
        if stat is None or stat.start_ticks != rank.start_ticks:
            os.close(fd)
            return None
        self.watched[fd] = rank
        self.oom.refresh([rank.pid])
        return fd

    def update(self, rank: Rank) -> None:
        """Take over what was learnt about a process since it was added (rank by its page)."""
        for fd, known in self.watched.items():
            if known.pid == rank.pid and known.start_ticks == rank.start_ticks:
                self.watched[fd] = rank

    def forget(self, fd: int) -> None:
        """Stop watching a process that turned out to be no rank."""
        if self.watched.pop(fd, None) is not None:
            os.close(fd)

    def take(self, fds: Iterable[int]) -> list[ExitLine]:
        """The ends behind descriptors that became readable; causes before consequences."""
        seen = []
        for fd in fds:
            rank = self.watched.pop(fd, None)
            if rank is None:
                continue
            status, how = status_of(fd, rank.pid, rank.start_ticks)
            os.close(fd)
            code = number = None
            if status is not None and os.WIFSIGNALED(status):
                number = os.WTERMSIG(status)
            elif status is not None:
                code = os.waitstatus_to_exitcode(status)
            seen.append((rank, code, number, how))
        # Of those that woke us together, the ones that a launcher may have ended come last.
        seen.sort(key=lambda one: by_launcher(one[1], one[2]) or one[1] == 0)
        return [self._line(*one) for one in seen]

    def _line(self, rank: Rank, code: int | None, number: int | None, how: str) -> ExitLine:
        now = time.time()
        killed = self.oom.killed(rank.pid) if number == signal.SIGKILL else False
        first = self._first_failure.get(rank.attempt)
        ours = (
            first is not None
            and now - first < VICTIM_WINDOW_S
            and by_launcher(code, number)
            and not killed
        )
        line = ExitLine(
            rank=rank.rank, pid=rank.pid, code=code, signal=number, when=now,
            order=len(self.ended) + 1, ours=ours, how=how, attempt=rank.attempt,
            oom_killed=killed, start_ticks=rank.start_ticks,
        )  # fmt: skip
        if line.abnormal and first is None:
            self._first_failure[rank.attempt] = now
        self.ended.append(line)
        self._append(line)
        return line

    def launcher_ends(self) -> None:
        """The launcher is gone, or was told to end: SIGTERM and SIGKILL are its work from now."""
        for attempt in {rank.attempt for rank in self.watched.values()}:
            self._first_failure.setdefault(attempt, time.time())

    def _append(self, line: ExitLine) -> None:
        with contextlib.suppress(OSError):
            fd = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, msgspec.json.encode(line) + b"\n")
            finally:
                os.close(fd)

    def close(self) -> None:
        """Give all descriptors back."""
        for fd in list(self.watched):
            self.forget(fd)
