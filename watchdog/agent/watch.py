"""What the agent knows of the job at any moment: processes, ranks, pages, progress, exits."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.agent.exits import ExitLine, ExitWatch
from fabwatch.watchdog.capture.job import JobView, Options, RankProcess
from fabwatch.watchdog.progress.monitor import Monitor
from fabwatch.watchdog.progress.pages import Pages, PageView
from fabwatch.watchdog.progress.sampling import Sample, sample, stopped
from fabwatch.watchdog.ranks import Finder, PageClaim, Rank

_HZ = os.sysconf("SC_CLK_TCK") or 100
QUICK_S, CALM_S, DEEP_S, FULL_S, OOM_S = 0.2, 2.0, 10.0, 30.0, 2.0
_SETTLING_S = 5.0
_SHARE = 150
"""A scan that takes t seconds is repeated after at least this many t."""


def output_files(pid: int | None) -> tuple[str, ...]:
    """Files behind a process's standard output and error; they outlive the launcher's own."""
    found = []
    for fd in (1, 2):
        link = Path(f"/proc/{pid}/fd/{fd}")
        with contextlib.suppress(OSError):
            if link.is_file():
                found.append(str(link.readlink()))
    return tuple(dict.fromkeys(found)) if pid else ()


class Watch:
    """The job. :meth:`scan` finds processes, :meth:`observe` looks at progress."""

    def __init__(self, run_dir: Path, run_id: str, sockets: str, stall_after: float | None) -> None:
        self.run_dir = run_dir
        self.sockets = sockets
        self.host = socket.gethostname()
        self.finder = Finder(None, run_id, {os.getpid()})
        self.pages = Pages(run_dir / "live")
        self.exits = ExitWatch(run_dir / "exits.jsonl")
        self.monitor = Monitor(stall_after)
        self.ranks: dict[int, Rank] = {}  # living, by pid
        self.seen: dict[tuple[int, int], Rank] = {}  # (attempt, rank), also when ended
        self.launcher: int | None = None
        self.root: int | None = None
        self.root_start = 0
        self.logs: tuple[str, ...] = ()
        self.attempt = 0
        self.restarts = 0
        self.next_scan = 0.0
        self._changed = 0.0
        self._next_deep = 0.0
        self._next_full = 0.0
        self._next_oom = 0.0
        self._full_step = 1.0
        self._over: set[tuple[int, int]] = set()  # identities whose end was seen
        self._genuine: dict[int, int] = {}  # pid -> start ticks of a process that owns its page

    def begin(self, root: int, now: float) -> None:
        """The stub has started the job as process ``root``."""
        stat = procfs.stat(root)
        self.root, self.finder.root = root, root
        self.root_start = stat.start_ticks if stat else 0
        self._changed = self.next_scan = now
        self._next_full = now + 2.0

    # -------------------------------------------------------------- finding

    def claims(self) -> dict[int, PageClaim]:
        """What the pages of living processes say."""
        found = {}
        for pid in self.pages.pids():
            page = self.pages.get(pid)
            if page is not None and self._owns(pid, page):
                found[pid] = page.claim()
        return found

    def _owns(self, pid: int, page: PageView) -> bool:
        """Whether the process is the one that writes the page, not a later one of that pid."""
        stat = procfs.stat(pid)
        if stat is None or stat.state in "ZX":
            return pid in self.ranks
        if self._genuine.get(pid) == stat.start_ticks:
            return True
        if stat.start_ticks / _HZ <= page.ticked + 1.0:
            self._genuine[pid] = stat.start_ticks
            return True
        return False

    def scan(self, now: float, *, deep: bool = False) -> tuple[list[int], list[int]]:
        """Look for ranks; returns descriptors to poll from now on, and those to forget."""
        began = time.monotonic()
        full = now >= self._next_full
        deep = deep or full or now >= self._next_deep or now - self._changed < _SETTLING_S
        found = self.finder.scan(self.claims(), deep=deep, full=full)
        if full:
            self._full_step = min(self._full_step * 2, FULL_S)
            self._next_full = now + self._full_step
        if deep:
            self._next_deep = now + DEEP_S
        new, gone = self._compare(found, now)
        took = time.monotonic() - began
        settling = now - self._changed < _SETTLING_S or (not self.ranks and now < 120)
        pause = QUICK_S if settling or not self.ranks else CALM_S
        self.next_scan = now + max(pause, took * _SHARE)
        if full:
            self._next_full = max(self._next_full, now + took * _SHARE)
        return new, gone

    def _compare(self, found: tuple[Rank, ...], now: float) -> tuple[list[int], list[int]]:
        new: list[int] = []
        gone: list[int] = []
        current = {r.pid: r for r in found if (r.pid, r.start_ticks) not in self._over}
        for pid, rank in current.items():
            known = self.ranks.get(pid)
            if known is None or known.start_ticks != rank.start_ticks:
                fd = self.exits.add(rank)
                if fd is None:
                    continue
                new.append(fd)
                self._changed = now
                if rank.attempt > self.attempt:
                    self.attempt = rank.attempt
                    self.restarts += 1
                    self.monitor.restarted(now)
            elif known != rank:
                self.exits.update(rank)
                self._changed = now
                self.seen.pop((known.attempt, known.rank), None)
            self.ranks[pid] = rank
            self.seen[(rank.attempt, rank.rank)] = rank
        for pid in set(self.ranks) - set(current):
            rank = self.ranks[pid]
            stat = procfs.stat(pid)
            if stat is None or stat.state in "ZX" or stat.start_ticks != rank.start_ticks:
                continue  # it has ended: its descriptor will say so
            for fd, watched in list(self.exits.watched.items()):
                if watched.pid == pid:
                    gone.append(fd)
            del self.ranks[pid]  # it launches ranks, or another process turned out to be the rank
            if self.seen.get((rank.attempt, rank.rank)) == rank:
                del self.seen[(rank.attempt, rank.rank)]
            self._changed = now
        if new or gone or self.launcher is None:
            self.launcher = self.finder.launcher(self.ranks.values())
        return new, gone

    # -------------------------------------------------------------- ends

    def take_exits(self, fds: list[int], now: float) -> list[ExitLine]:
        """Write down the ends behind readable descriptors."""
        lines = self.exits.take(fds)
        for line in lines:
            self.ranks.pop(line.pid, None)
            self._over.add((line.pid, line.start_ticks))
            if line.clean and line.attempt == self.attempt:
                self.monitor.left[line.rank] = now
        if lines:
            self._changed = now
            self.next_scan = min(self.next_scan, now + QUICK_S)
        return lines

    # -------------------------------------------------------------- progress

    def observe(self, now: float) -> None:
        """Look at every living rank once."""
        ask = self.monitor.wants_frozen(now)
        samples: list[Sample] = []
        for rank in list(self.ranks.values()):
            one = sample(rank.rank, rank.pid, self.pages.get(rank.pid), ask_frozen=rank.rank in ask)
            if one is not None and one.state not in "ZX":
                samples.append(one)
        heads = [pid for pid in (self.root, self.launcher) if pid and pid not in self.ranks]
        self.monitor.observe(now, samples, suspended=bool(heads) and stopped(heads))
        if now >= self._next_oom:
            self._next_oom = now + OOM_S
            self.exits.oom.refresh(list(self.ranks))

    def others_exiting(self) -> bool:
        """Whether every living rank's interpreter shuts down already."""
        pages = [self.pages.get(pid) for pid in self.ranks]
        return all(page is not None and page.exiting for page in pages)

    def has_pages(self) -> bool:
        """Whether every living rank has a page."""
        return bool(self.ranks) and all(self.pages.get(pid) is not None for pid in self.ranks)

    # -------------------------------------------------------------- telling others

    @property
    def world_size(self) -> int:
        """How many ranks the job has on all hosts together, as far as anybody says."""
        ranks = self.of_attempt()
        return max([len(ranks), *(r.world_size for r in ranks)], default=0)

    def of_attempt(self) -> list[Rank]:
        """Ranks of the newest attempt, ended ones included."""
        newest = {
            rank: one
            for (attempt, rank), one in sorted(self.seen.items(), key=lambda item: item[0])
            if attempt == self.attempt
        }
        return [newest[rank] for rank in sorted(newest)]

    def view(self, options: Options | None = None) -> JobView:
        """The job as a capture needs it."""
        living = {(r.pid, r.start_ticks) for r in self.ranks.values()}
        stat = procfs.stat(self.launcher) if self.launcher else None
        return JobView(
            run_dir=str(self.run_dir),
            sockets=self.sockets,
            host=self.host,
            ranks=tuple(
                RankProcess(
                    rank=r.rank, pid=r.pid, start_ticks=r.start_ticks, local_rank=r.local_rank,
                    attempt=r.attempt, ended=(r.pid, r.start_ticks) not in living,
                )
                for r in self.of_attempt()
            ),
            logs=self.logs,
            launcher_pid=self.launcher if stat else self.root,
            launcher_start_ticks=stat.start_ticks if stat else self.root_start or None,
            options=options or Options(),
        )  # fmt: skip

    def root_lives(self) -> bool:
        """Whether the process that the stub started still runs."""
        if self.root is None:
            return False
        stat = procfs.stat(self.root)
        return stat is not None and stat.start_ticks == self.root_start and stat.state not in "ZX"

    def living(self) -> list[int]:
        """All processes of the job that run."""
        return self.finder.living()

    def versions(self) -> Mapping[str, str]:
        """Versions that pages tell."""
        for pid in self.ranks:
            page = self.pages.get(pid)
            if page is not None:
                return {k: v for k, v in (("torch", page.torch), ("python", page.python)) if v}
        return {}

    def close(self) -> None:
        """Give descriptors back."""
        with contextlib.suppress(OSError):
            self.exits.close()
