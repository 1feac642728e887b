"""Flight-recorder dumps with code frames, written by the probe's thread (needs the GIL)."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import armed, files
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, timed_out
from fabwatch.watchdog.evidence.ledger import Status

RECORDERS = (("cpu", "fr_trace_rank_N"), ("nccl", "nccl_trace_rank_N"))
ASK_S = 14.0
PIPE_S = 8.0
CAP = 16 << 20


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """The probe's control socket; NCCL's own pipe when that is mute; what the job left itself."""
    files.make_private(out)
    outcomes: list[Outcome] = []
    if not target.alive():
        outcomes.append(absent(f"process {target.pid} has ended"))
    else:
        missing = armed.without_socket(target, "p")
        outcomes += [missing] if missing is not None else list(_ask(target, out))
    good = [one for one in outcomes if one.path is not None]
    if not good:
        found = _pipe(target, out) if target.alive() else None
        found = found or _own(target, out, 0.0, "dumped by the job itself")
        good = [found] if found is not None and found.path is not None else []
    yield from good
    if not good:
        yield outcomes[0]


def patience(ranks: int, cores: int | None = None) -> float:
    """Seconds to wait for the dumps: the first one reads symbols, 1-2 s of one processor each."""
    cores = cores or os.cpu_count() or 1
    return min(ASK_S, 4.0 + 3.0 * -(-ranks // cores))


def _ask(target: Target, out: Path) -> Iterator[Outcome]:
    """Ask for both recorders at once and take what comes.

    The rank writes under the final name: a dump that comes too late for us is still evidence.
    """
    wait = patience(len(target.job.ranks))
    until = min(target.until, time.monotonic() + wait)
    waiting: dict[str, tuple[Path, Path]] = {}
    for recorder, name in RECORDERS:
        landing = out / target.named(name)
        error = landing.with_name(landing.name + ".err")
        for stale in (landing, error):
            stale.unlink(missing_ok=True)
        order = {"do": "fr-pickle", "to": str(landing), "recorder": recorder, "stacks": True}
        why = _send(armed.socket_path(target, "p"), json.dumps(order).encode(), until)
        if why is not None:
            yield why
            return
        waiting[name] = (landing, error)
    while waiting and time.monotonic() < until:
        for name, (landing, error) in list(waiting.items()):
            if landing.exists():
                taken = _take(target, landing, landing)
                if taken.path is None:  # no room for it: then it may not stay either
                    landing.unlink(missing_ok=True)
                yield taken
                del waiting[name]
            elif error.exists():
                said = procfs.read(error, 300).decode(errors="replace").strip()
                error.unlink(missing_ok=True)
                yield failed(f"the probe could not: {said or 'no reason given'}")
                del waiting[name]
        time.sleep(0.01)
    for name in waiting:
        yield timed_out(
            f"the probe's thread did not answer in {wait:g} s: another thread holds the GIL, the "
            f"process is stopped, or it reads symbols slowly; {target.named(name)} may yet come"
        )


def _send(path: Path, order: bytes, until: float) -> Outcome | None:
    """Send one datagram without waiting for a reader; None when it is on its way."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.setblocking(False)
        while True:
            try:
                sock.connect(str(path))
                sock.send(order)
                return None
            except BlockingIOError:
                if time.monotonic() > until:
                    return timed_out("the probe's socket is full: its thread does not run")
                time.sleep(0.02)
            except OSError as err:
                if err.errno in (errno.ECONNREFUSED, errno.ENOENT):
                    return absent("nobody listens on the probe's control socket any more")
                return failed(f"the probe's control socket: {err.strerror}")


def _take(target: Target, path: Path, landing: Path, note: str = "") -> Outcome:
    size = landing.stat().st_size
    cap = target.fair_share(CAP)
    data = procfs.read(landing, cap)
    if size > cap:
        # The beginning of a pickle can still be read; a hole in its middle ends it anyway.
        note = "; ".join(x for x in (note, f"the first {cap} of {size} bytes") if x)
    return target.save(
        path, data, mask=False, cap=CAP, note=note, partial=size > cap or not size,
        source=COLLECTOR.source,
    )  # fmt: skip


def _own(target: Target, out: Path, since: float, note: str) -> Outcome | None:
    """A dump that the job wrote under its armed name, at or after ``since`` (epoch seconds)."""
    name = target.named("nccl_trace_rank_N")
    source = Path(target.job.run_dir) / "fr" / name
    try:
        info = source.stat()
        if info.st_mtime < since or not info.st_size:
            return None
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.st_mtime))
        return _take(target, out / name, source, f"{note}, {when}")
    except OSError:
        return None


def _pipe(target: Target, out: Path) -> Outcome | None:
    """Ask NCCL's monitor thread through its pipe and wait for the file to settle."""
    pipe = Path(target.job.sockets or "/nonexistent") / f"fr-pipe-{target.process.rank}.pipe"
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    since = time.time() - 0.1
    try:
        os.write(fd, b"1\n")
    except OSError:
        return None
    finally:
        os.close(fd)
    until, last = time.monotonic() + target.left(PIPE_S), -1
    source = Path(target.job.run_dir) / "fr" / target.named("nccl_trace_rank_N")
    while time.monotonic() < until:
        time.sleep(0.2)
        try:
            info = source.stat()
        except OSError:
            continue
        if info.st_mtime >= since and info.st_size == last:
            return _own(target, out, since, "through NCCL's dump pipe")
        last = info.st_size if info.st_mtime >= since else -1
    found = _own(target, out, since, "through NCCL's dump pipe, perhaps half-written")
    if found is not None and found.status is Status.OK:
        return Outcome(Status.PARTIAL, found.path, found.sha256, found.size, found.reason)
    return found


COLLECTOR = Collector(
    name="fr-frames",
    scope="rank",
    tier=2,
    source="flight-recorder-frames",
    needs=("the probe's control socket",),
    deadline_s=ASK_S + 2.0,
    living=False,
    collect=collect,
)
