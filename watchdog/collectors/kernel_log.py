"""The end of the kernel's log: out-of-memory kills, Xids, link and disk errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.files import HeadTail
from fabwatch.watchdog.capture.outcome import Outcome, failed

CAP = 1 << 20


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """dmesg.txt: ``dmesg -T``, plain ``dmesg``, or /dev/kmsg's own format; the last 1 MiB."""
    why = ["dmesg is not installed"]
    dmesg = commands.program("dmesg")
    if dmesg is not None:
        why = []
        for extra in (["-T"], []):
            ran = commands.run([dmesg, *extra], timeout=target.left(2.0), cap=32 << 20)
            if ran.code == 0:
                yield _save(target, out, ran.out, "")
                return
            why.append(ran.why("dmesg"))
            if ran.code is None:
                break
    try:
        yield _save(target, out, kmsg(), "/dev/kmsg's own format")
    except OSError as err:
        yield failed(f"{why[-1]}; /dev/kmsg: {err.strerror}")


def _save(target: Target, out: Path, text: bytes, note: str) -> Outcome:
    clipped = len(text) > CAP
    if clipped:
        text = text[-CAP:].partition(b"\n")[2]
        note = "; ".join(x for x in (note, "the last 1 MiB") if x)
    return target.save(out / "dmesg.txt", text, note=note, partial=clipped)


def kmsg(path: str = "/dev/kmsg", most: int = 32 << 20) -> bytes:
    """The kernel's ring buffer, record by record. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kept = HeadTail(0, CAP * 2)
    try:
        while kept.total < most:
            try:
                record = os.read(fd, 16384)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while it was read: go on behind it
                continue
            if not record:
                break
            kept.feed(record)
    finally:
        os.close(fd)
    return b"".join(kept.parts())


COLLECTOR = Collector(
    name="kernel-log",
    scope="host",
    tier=2,
    source="kernel-log",
    needs=("dmesg or /dev/kmsg", "permission: kernel.dmesg_restrict=0 or root"),
    deadline_s=5.0,
    collect=collect,
)
