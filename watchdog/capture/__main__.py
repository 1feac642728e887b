"""``python -m fabwatch.watchdog.capture``: take one snapshot, at once or on command."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import select
import sys
import time
from pathlib import Path

import msgspec

from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import collectors
from fabwatch.watchdog.capture.job import JobView
from fabwatch.watchdog.capture.run import capture_snapshot


class Order(msgspec.Struct, kw_only=True):
    """The JSON line that sets off a warmed-up capture. ``job`` spares reading job.json."""

    incident: str
    tier: int = 1
    snapshot: int = 1
    deadline: float = 5.0
    job: JobView | None = None


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 a ledger was written, 1 it could not be, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="python -m fabwatch.watchdog.capture", description=__doc__
    )
    parser.add_argument("incident", nargs="?", type=Path, help="directory with job.json")
    parser.add_argument("--tier", type=int, choices=(1, 2), default=1)
    parser.add_argument("--snapshot", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=5.0, metavar="SECONDS")
    parser.add_argument(
        "--wait-fd", type=int, metavar="FD", help="wait for one JSON line there, then go at once"
    )
    args = parser.parse_args(argv)
    if (args.incident is None) == (args.wait_fd is None):
        parser.error("give either INCIDENT or --wait-fd")
    warm()
    if args.wait_fd is not None:
        return wait(args.wait_fd)
    order = Order(
        incident=str(args.incident), tier=args.tier, snapshot=args.snapshot, deadline=args.deadline
    )
    return carry_out(order)


def warm() -> None:
    """Import and look up all that a capture needs, and keep it out of the collector's way."""
    collectors()
    for name in ("py-spy", "ss", "ip", "dmesg", "nvidia-smi"):
        commands.program(name)
    gc.collect()
    gc.freeze()


def wait(fd: int) -> int:
    """Wait for an order on ``fd``; 0 when it is closed without one. Answers with a JSON line."""
    raw = b""
    while b"\n" not in raw:
        if len(raw) > 1 << 20:
            print("fabwatch capture: the order is longer than 1 MiB", file=sys.stderr)
            return 2
        select.select([fd], [], [])
        data = os.read(fd, 1 << 16)
        if not data:
            return 0
        raw += data
    began = time.monotonic()
    try:
        order = msgspec.json.decode(raw.split(b"\n", 1)[0], type=Order)
    except msgspec.MsgspecError as err:
        print(f"fabwatch capture: fd {fd}: {err}", file=sys.stderr)
        return 2
    code = carry_out(order)
    took = round(time.monotonic() - began, 3)
    with contextlib.suppress(OSError):  # a one-way pipe, or the other side has gone
        os.write(fd, msgspec.json.encode({"done": True, "code": code, "took": took}) + b"\n")
    return code


def carry_out(order: Order) -> int:
    """Take the snapshot. Exit status as :func:`main`."""
    incident = Path(order.incident).absolute()
    try:
        job = order.job if order.job is not None else JobView.load(incident)
        capture_snapshot(
            incident, job, tier=order.tier, snapshot=order.snapshot, deadline_s=order.deadline
        )
    except (OSError, ValueError) as err:
        print(f"fabwatch capture: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
