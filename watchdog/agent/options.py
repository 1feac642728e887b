"""What the launch asked of the agent: launch.json, and the terminal behind the stub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Options:
    """What the launch asked of the agent, from launch.json."""

    def __init__(self, launch: dict[str, Any], run_dir: Path) -> None:
        given = launch.get("options")
        options: dict[str, Any] = given if isinstance(given, dict) else {}
        self.job = str(launch.get("job") or run_dir.name)
        self.started = _seconds(launch.get("started"), None, most=1e11)
        self.run_id = str(launch.get("run_id") or run_dir.name)
        self.sockets = str(launch.get("sockets") or os.environ.get("FABWATCH_SOCKETS", ""))
        self.stub_pid = launch.get("stub_pid") if isinstance(launch.get("stub_pid"), int) else None
        self.stall_after = _seconds(options.get("stall_after"))
        self.grace = _seconds(options.get("grace"), 10.0) or 0.0
        self.kill = options.get("on_stall") == "kill"
        self.signatures = options.get("signatures") or None
        self.notify: str | None = None  # comes over the line: launch.json holds it masked


def _seconds(value: object, default: float | None = None, most: float = 1e9) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < most:
        return float(value)
    return default


def columns_of(stub: int | None) -> int | None:
    """Columns of the terminal behind the stub's stderr, None if it is none."""
    if stub is None:
        return None
    try:
        fd = os.open(f"/proc/{stub}/fd/2", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.get_terminal_size(fd).columns if os.isatty(fd) else None
    except OSError:
        return None
    finally:
        os.close(fd)


def wants_color() -> bool:
    """Whether the environment asks for colour, or does not forbid it."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
