"""Take one snapshot of a job: all collectors of a tier at once, each with a ledger line."""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from fabwatch.watchdog.capture import children, files
from fabwatch.watchdog.capture.children import Child, Report
from fabwatch.watchdog.capture.collector import Collector, Target, collectors
from fabwatch.watchdog.capture.files import Budget
from fabwatch.watchdog.capture.job import FILE, JobView
from fabwatch.watchdog.capture.ledger_file import LedgerFile
from fabwatch.watchdog.evidence.ledger import Evidence, Status

MARGIN_S = 0.5
"""Kept back from the deadline of a capture for killing children and writing their lines."""

QUIET_SHARE = 0.45
"""Of the time there is, how much a collector that stops its targets waits for the others."""

HEAD_START_S = 0.3
"""How long evidence that vanishes may have the processors for itself."""


def capture_snapshot(
    incident: Path, job: JobView, *, tier: int, snapshot: int, deadline_s: float
) -> None:
    """Take everything of ``tier`` into ``incident``; returns within ``deadline_s`` and a moment.

    ``snapshot`` counts from 1. Raises OSError only if the incident directory cannot be made;
    whatever else goes wrong becomes a ledger line.
    """
    _Capture(incident, job, tier, snapshot, time.monotonic() + deadline_s).go()


@dataclass
class _Capture:
    incident: Path
    job: JobView
    tier: int
    snapshot: int
    end: float
    running: dict[int, Child] = field(default_factory=dict)  # by descriptor
    closed: list[Child] = field(default_factory=list)  # pipe closed, not yet waited for

    def go(self) -> None:
        files.make_private(self.incident)
        now = time.monotonic()
        self.head_start = now + HEAD_START_S
        self.quiet_until = now + QUIET_SHARE * (self.end - now)
        self.soft_end = max(time.monotonic(), self.end - MARGIN_S)
        self.ledger = LedgerFile(self.incident / "ledger.jsonl")
        self.budget = Budget(self.job.options.budget, self.ledger.bytes_of(self.job.host))
        skip = set(self.job.options.skip)
        wanted = deque(c for c in collectors() if c.tier == self.tier and c.name not in skip)
        if not self.job.options.native:
            wanted = deque(c for c in wanted if not c.perturbs)
        # The view is for whoever reads the incident; the first evidence does not wait for it.
        self._start_while(wanted)
        if not (self.incident / FILE).exists():
            with contextlib.suppress(OSError):
                self.job.save(self.incident)
        with selectors.DefaultSelector() as self.ready:
            for fd in self.running:
                self.ready.register(fd, selectors.EVENT_READ)
            self._loop(wanted)
        self._mend_rest()
        lost = self.ledger.close()
        if lost:
            complain(f"{self.incident}/ledger.jsonl: {lost} lines could not be written; disk full?")

    # ---------------------------------------------------------------- children

    def _limit(self) -> int:
        return self.job.options.workers or max(6, 3 * (os.cpu_count() or 1))

    def _start_while(self, wanted: deque[Collector]) -> None:
        while wanted and len(self.running) < self._limit():
            if not wanted[0].first and self._in_head_start():
                return
            if wanted[0].perturbs and self._others_at_work():
                return
            self._start(wanted.popleft())

    def _in_head_start(self) -> bool:
        return time.monotonic() < self.head_start and any(
            child.collector.first for child in self.running.values()
        )

    def _others_at_work(self) -> bool:
        """Whether somebody still waits for an answer of the ranks, who must not be stopped now."""
        return time.monotonic() < self.quiet_until and any(
            child.collector.scope == "rank" and not child.collector.perturbs
            for child in self.running.values()
        )

    def _start(self, collector: Collector) -> None:
        targets, outs = self._targets(collector)
        if not targets:
            return
        if time.monotonic() >= self.soft_end:
            for target in targets:
                self._lost(collector, target, Status.TIMED_OUT, "no time was left for it")
            return
        try:
            child = children.start(collector, targets, outs, self.soft_end)
        except OSError as err:
            for target in targets:
                self._lost(collector, target, Status.FAILED, f"no process for it: {err.strerror}")
            return
        self.running[child.fd] = child
        if hasattr(self, "ready"):
            self.ready.register(child.fd, selectors.EVENT_READ)

    def _targets(self, collector: Collector) -> tuple[list[Target], list[Path]]:
        base = Target(self.job, self.incident, self.snapshot, self.budget, self.soft_end)
        again = f"snapshot-{self.snapshot}" if self.snapshot > 1 else "."
        if collector.scope == "rank":
            targets = [
                Target(self.job, self.incident, self.snapshot, self.budget, self.soft_end, rank)
                for rank in self.job.ranks
            ]
            return targets, [
                self.incident / "ranks" / str(target.process.rank) / again for target in targets
            ]
        if collector.scope == "host":
            return [base], [self.incident / "hosts" / self.job.host / again]
        return [base], [self.incident]

    def _loop(self, wanted: deque[Collector]) -> None:
        self._start_while(wanted)
        while self.running or wanted:
            now = time.monotonic()
            overdue = [child for child in self.running.values() if child.until <= now]
            for child in overdue:
                self._give_up(child)
            self._start_while(wanted)
            if not self.running:
                continue
            next_end = min(child.until for child in self.running.values())
            if wanted and self._in_head_start():
                next_end = min(next_end, self.head_start)
            if wanted and wanted[0].perturbs:
                next_end = min(next_end, max(self.quiet_until, time.monotonic() + 0.01))
            for key, _ in self.ready.select(max(0.0, next_end - time.monotonic())):
                self._hear(self.running[key.fd])

    def _hear(self, child: Child) -> None:
        fd = child.fd
        for report in child.read():
            if not report.done:
                self._write(child, report)
        if child.fd < 0:
            self.ready.unregister(fd)
            del self.running[fd]
            if not child.reaped():
                self.closed.append(child)
            for index in sorted(child.pending):
                reason = f"collector {child.collector.name} ended without an answer"
                self._lost(child.collector, child.targets[index], Status.FAILED, reason)

    def _give_up(self, child: Child) -> None:
        """Kill a child that is past its deadline; what it has not reported is timed out."""
        for report in child.read():  # what arrived at the last moment
            if not report.done:
                self._write(child, report)
        fd = next(fd for fd, other in self.running.items() if other is child)
        self.ready.unregister(fd)
        del self.running[fd]
        left_behind = child.kill()
        if child.fd >= 0:
            os.close(child.fd)
            child.fd = -1
        late = [child.targets[index] for index in sorted(child.pending)]
        for target in late:
            took = time.monotonic() - child.began
            reason = f"no answer in {child.until - child.began:.1f} s"
            if left_behind:
                reason += f"; {left_behind}"
            self._lost(child.collector, target, Status.TIMED_OUT, reason, child.wall, took)
        for index in sorted(child.pending):
            with contextlib.suppress(OSError):
                for part in child.outs[index].glob(f".*.{child.pid}.part"):
                    part.unlink()
        if child.collector.undo is not None:
            with contextlib.suppress(OSError):
                mending = children.undo(child.collector, late)
                if mending is not None:
                    self.closed.append(mending)

    def _mend_rest(self) -> None:
        """Reap what has ended; kill what has not, without ever waiting for it."""
        until = max(self.end, time.monotonic() + 0.2)
        while self.closed and time.monotonic() < until:
            self.closed = [child for child in self.closed if not child.reaped()]
            if self.closed:
                time.sleep(0.005)
        for child in self.closed:
            child.kill()

    # ---------------------------------------------------------------- ledger

    def _write(self, child: Child, report: Report) -> None:
        target = child.targets[report.i]
        rank = target.rank
        self.ledger.add(
            Evidence(
                source=report.source or child.collector.source,
                status=report.status,
                rank=rank.rank if rank else None,
                host=self.job.host if child.collector.scope != "run" else "",
                pid=rank.pid if rank else None,
                path=report.path,
                sha256=report.sha256,
                size=report.size,
                started=report.started,
                took=report.took,
                snapshot=self.snapshot,
                reason=report.reason,
                collector=child.collector.name,
                expected=report.expected,
            )
        )

    def _lost(
        self,
        collector: Collector,
        target: Target,
        status: Status,
        reason: str,
        started: float = 0.0,
        took: float = 0.0,
    ) -> None:
        rank = target.rank
        self.ledger.add(
            Evidence(
                source=collector.source,
                status=status,
                rank=rank.rank if rank else None,
                host=self.job.host if collector.scope != "run" else "",
                pid=rank.pid if rank else None,
                started=started or time.time(),
                took=round(took, 6),
                snapshot=self.snapshot,
                reason=reason,
                collector=collector.name,
            )
        )


def complain(text: str) -> None:
    """Say on stderr what could not even be written to the ledger."""
    print(f"fabwatch capture: {text}", file=sys.stderr)
