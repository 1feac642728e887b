"""The agent's log: JSON lines in agent.log, one write each."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import structlog


class AppendingLog:
    """Writes a line at the end of a file; a full disk loses lines, never the agent."""

    def __init__(self, file: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(file, flags, 0o600)

    def msg(self, message: str) -> None:
        """Write one line."""
        with contextlib.suppress(OSError):
            os.write(self._fd, message.encode("utf-8", "backslashreplace") + b"\n")

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def open_log(file: Path) -> Any:
    """A structlog logger that appends JSON lines to ``file``."""
    return structlog.wrap_logger(
        AppendingLog(file),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        cache_logger_on_first_use=True,
    )
