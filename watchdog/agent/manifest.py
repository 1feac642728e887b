"""Write manifest.json: who is in the run, with which versions and clocks."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import fabwatch
from fabwatch.watchdog.agent.files import write_json
from fabwatch.watchdog.agent.watch import Watch

SCHEMA = "fabwatch.run/1"


def clocks() -> dict[str, float]:
    """One pair of wall and monotonic time, seconds."""
    return {"wall": time.time(), "monotonic": time.monotonic()}


def manifest(watch: Watch, job: str, started: dict[str, float]) -> dict[str, Any]:
    """The manifest as it stands now."""
    return {
        "schema": SCHEMA,
        "job": job,
        "world_size": watch.world_size,
        "hosts": [watch.host],
        "ranks": [
            {
                "rank": r.rank,
                "local_rank": r.local_rank,
                "pid": r.pid,
                "host": watch.host,
                "start_ticks": r.start_ticks,
                "attempt": r.attempt,
                "how": r.how,
            }
            for _, r in sorted(watch.seen.items())
        ],
        "versions": {
            "fabwatch": fabwatch.__version__,
            "agent_python": platform.python_version(),
            "kernel": os.uname().release,
            "platform": sys.platform,
            **watch.versions(),
        },
        "clocks": [started, clocks()],
        "clock_ticks_per_s": os.sysconf("SC_CLK_TCK"),
        "launcher_pid": watch.launcher,
        "root_pid": watch.root,
        "restarts": watch.restarts,
        "collectors": _collectors(),
    }


def _collectors() -> list[str]:
    """Names of the collectors, from the folder: nothing of them is imported here."""
    from fabwatch.watchdog import collectors

    return sorted(
        path.stem
        for folder in collectors.__path__
        for path in Path(folder).glob("*.py")
        if not path.name.startswith("_")
    )


def write(run_dir: Path, value: dict[str, Any]) -> None:
    """Replace manifest.json. Raises OSError."""
    write_json(run_dir / "manifest.json", value)
