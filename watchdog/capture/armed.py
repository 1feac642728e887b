"""Say why the probe's sockets do not answer: never armed, gone, or mute."""

from __future__ import annotations

from pathlib import Path

from fabwatch.watchdog.capture.collector import Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, not_armed

NAMES = ("probe", "PYTHONPATH", "FABWATCH_SOCKETS", "FABWATCH_RUN_DIR")
"""Entries of launch.json without which the probe does not reach the ranks."""


def page(target: Target) -> Path:
    """The progress page of the target's rank."""
    return Path(target.job.run_dir) / "live" / f"{target.pid}.page"


def socket_path(target: Target, letter: str) -> Path:
    """``w`` the worker server, ``p`` the probe's control socket."""
    return Path(target.job.sockets or "/nonexistent") / f"{letter}{target.pid}.sock"


def without_socket(target: Target, letter: str) -> Outcome | None:
    """The outcome when the socket does not exist; None when it does."""
    path = socket_path(target, letter)
    if target.job.sockets and path.exists():
        return None
    why = target.unarmed(*NAMES)
    if why:
        return not_armed(why)
    if not target.job.sockets:
        return not_armed("the job was started without the probe")
    if not page(target).exists():
        return not_armed(
            "the probe never ran in this process (no progress page): "
            "environment not handed down, python -I/-E/-S, or torch.distributed not imported"
        )
    what = "worker server" if letter == "w" else "control thread"
    return absent(f"the probe ran, its {what} has no socket here: not supported or closed")
