"""Run one collector for all its targets in a child that can be killed."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.commands import die_with_parent
from fabwatch.watchdog.capture.files import disk_reason
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed
from fabwatch.watchdog.evidence.ledger import Status

REASON_CAP = 600
GRACE_S = 0.4
"""How long after its collector's deadline a child may still report before it is killed."""


class Report(msgspec.Struct, omit_defaults=True):
    """One line from a child: an outcome of target ``i``, or (``done``) its end."""

    i: int
    done: bool = False
    source: str = ""
    status: Status = Status.FAILED
    path: str = ""
    sha256: str = ""
    size: int = 0
    reason: str = ""
    started: float = 0.0
    took: float = 0.0
    expected: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Report).decode


@dataclass(slots=True)
class Child:
    """A collector at work. ``pending``: indices of targets that have not ended."""

    collector: Collector
    targets: Sequence[Target]
    outs: Sequence[Path]
    pid: int
    fd: int
    began: float
    wall: float
    until: float
    pending: set[int]
    begun: dict[int, float] = field(default_factory=dict)
    rest: bytes = b""

    def read(self) -> Iterator[Report]:
        """Reports that have arrived. Closes ``fd`` (then -1) when the child has ended."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os.close(self.fd)
            self.fd = -1
            return
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                report = _decode(line)
                if report.done:
                    self.pending.discard(report.i)
                yield report

    def kill(self) -> str:
        """SIGKILL the child and what it started. Returns "" or why it is still there."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + 0.25
        while True:
            if self.reaped():
                return ""
            if time.monotonic() > until:
                break
            time.sleep(0.005)
        now = procfs.stat(self.pid)
        state = now.state if now else "?"
        return f"collector process {self.pid} cannot be killed (state {state}) and was left behind"

    def reaped(self) -> bool:
        """Whether the child has ended and was waited for; never blocks."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True


def start(
    collector: Collector, targets: Sequence[Target], outs: Sequence[Path], until: float
) -> Child:
    """Fork a child that runs ``collector`` for every target. Raises OSError.

    ``until``: monotonic seconds at which everything of this capture must be over. The caller must
    have a single thread.
    """
    began, wall = time.monotonic(), time.time()
    waves = -(-len(targets) // collector.at_once) if collector.at_once else 1
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _child(collector, targets, outs, write_end, until)
    os.close(write_end)
    os.set_blocking(read_end, False)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)
    return Child(
        collector, targets, outs, pid, read_end, began, wall,
        min(until, began + waves * collector.deadline_s + GRACE_S), set(range(len(targets))),
    )  # fmt: skip


def _child(
    collector: Collector, targets: Sequence[Target], outs: Sequence[Path], fd: int, until: float
) -> NoReturn:
    try:
        _settle(collector, fd, [target.budget.fileno() for target in targets])
        work: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(targets)):
            work.put(index)
        count = min(collector.at_once or len(targets), len(targets))
        threads = [
            threading.Thread(target=_worker, args=(collector, targets, outs, work, fd, until))
            for _ in range(count - 1)
        ]
        for thread in threads:
            thread.start()
        _worker(collector, targets, outs, work, fd, until)
        for thread in threads:
            thread.join()
    except BaseException:  # nothing above us could handle it: the parent sees a closed pipe
        os._exit(1)
    os._exit(0)


def _settle(collector: Collector, fd: int, keep: Sequence[int]) -> None:
    """Make the fresh child harmless: own group, no terminal, no inherited descriptors."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    if not collector.perturbs:
        # One that pauses its target must end by itself, lest it leave the target paused.
        die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    os.umask(0o077)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kept = sorted({0, 1, 2, fd, *keep})
    for low, high in zip(kept, [*kept[1:], 1 << 16], strict=True):
        os.closerange(low + 1, high)


def _worker(
    collector: Collector,
    targets: Sequence[Target],
    outs: Sequence[Path],
    work: queue.SimpleQueue[int],
    fd: int,
    until: float,
) -> None:
    while True:
        try:
            index = work.get_nowait()
        except queue.Empty:
            return
        began, wall = time.monotonic(), time.time()
        target = dataclasses.replace(targets[index], until=min(until, began + collector.deadline_s))
        for outcome in attempt(collector, target, outs[index]):
            _send(fd, _report(index, outcome, collector, target, wall, time.monotonic() - began))
        _send(fd, Report(i=index, done=True))


def attempt(collector: Collector, target: Target, out: Path) -> Iterator[Outcome]:
    """Run a collector for one target: identity first, every failure an outcome, never a raise."""
    rank = target.rank
    if rank is not None and collector.living:
        now = procfs.stat(rank.pid)
        if now is None:
            yield absent(f"process {rank.pid} has ended")
            return
        if rank.start_ticks and now.start_ticks != rank.start_ticks:
            yield absent(f"process {rank.pid} has ended; its number is another process's now")
            return
    got = 0
    try:
        for outcome in collector.collect(target, out):
            got += 1
            if rank is not None and collector.living and outcome.path and rank.start_ticks:
                now = procfs.stat(rank.pid)
                if now is not None and now.start_ticks != rank.start_ticks:
                    outcome.path.unlink(missing_ok=True)
                    yield failed(f"process {rank.pid} was replaced while it was read")
                    return
            yield outcome
    except PermissionError as err:
        yield failed(
            f"no permission: {err.filename or err}; run fabwatch as the job's user or root"
        )
    except OSError as err:
        gone = rank is not None and collector.living and not target.alive()
        where = f" ({err.filename})" if err.filename else ""
        reason = f"{err.strerror or err}{where}"
        if gone and rank is not None:
            yield failed(f"process {rank.pid} ended while it was read: {reason}")
        elif err.errno in (errno.ENOSPC, errno.EDQUOT):
            yield failed(disk_reason(err, out))
        else:
            yield failed(reason)
    except Exception as err:
        yield failed(f"collector {collector.name} broke: {type(err).__name__}: {err}")
    else:
        if not got:
            yield absent("nothing to take here")


def _report(
    index: int, outcome: Outcome, collector: Collector, target: Target, wall: float, took: float
) -> Report:
    path = ""
    if outcome.path is not None:
        path = os.path.relpath(outcome.path, target.incident)
    return Report(
        i=index,
        source=outcome.source or collector.source,
        status=outcome.status,
        path=path,
        sha256=outcome.sha256,
        size=outcome.size,
        reason=outcome.reason[:REASON_CAP],
        started=wall,
        took=round(took, 6),
        expected=outcome.expected,
    )


def _send(fd: int, report: Report) -> None:
    """One write, shorter than PIPE_BUF, so that lines of several threads never mix."""
    os.write(fd, _encode(report)[:4000] + b"\n")


def undo(collector: Collector, targets: Sequence[Target]) -> Child | None:
    """Repair targets whose collector was killed half-way, in a child again."""
    repair = collector.undo
    if repair is None or not targets:
        return None

    def mend(target: Target, _: Path) -> list[Outcome]:
        repair(target)
        return [absent("undone")]

    mender = Collector(collector.name, collector.scope, collector.tier, collector.source, 1.0, mend)
    return start(mender, targets, [target.incident for target in targets], time.monotonic() + 1.0)
