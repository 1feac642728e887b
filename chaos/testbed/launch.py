"""Run one job across the hosts of a test bed, as a scheduler would: a launcher on each host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fabwatch.chaos.testbed.control import Bed

PORT = 29500
"""Where rank 0's store listens; each bed has addresses of its own, so no port is ever taken."""

POLL_S = 0.1


def torchrun(
    bed: Bed, host: int, nproc: int, arguments: Sequence[str], out: Path | None = None
) -> list[str]:
    """Torchrun's command line on one host; with ``out``, under fabwatch with its runs there.

    ``arguments`` follow ours, so that options of torchrun in them win.
    """
    watch = []
    if out is not None:
        watch = [sys.executable, "-m", "fabwatch", "--out", str(out / bed.hosts[host].name)]
    return [
        *watch,
        *(() if watch else (sys.executable, "-m")),
        "torch.distributed.run" if not watch else "torchrun",
        f"--nnodes={bed.spec.hosts}",
        f"--nproc-per-node={nproc}",
        f"--node-rank={host}",
        f"--master-addr={bed.hosts[0].addresses[0]}",
        f"--master-port={PORT}",
        *arguments,
    ]


def start_across(
    bed: Bed,
    commands: Sequence[Sequence[str]],
    env: Mapping[str, str] | None = None,
    **more: Any,
) -> list[subprocess.Popen[Any]]:
    """Start ``commands[i]`` on host i; ``more`` goes to subprocess.Popen."""
    started: list[subprocess.Popen[Any]] = []
    environment = dict(os.environ if env is None else env)
    # `torchrun` is looked up beside the interpreter that runs us, as in an activated environment.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}"
    try:
        for host, command in enumerate(commands):
            started.append(bed.popen(host, command, env=environment, **more))
    except BaseException:
        for one in started:
            one.kill()
        raise
    return started


def wait_across(started: Sequence[subprocess.Popen[Any]], grace: float = 60.0) -> int:
    """Wait for all; the first exit status that is not 0 (128 + signal for a signal).

    When one has failed, the others get ``grace`` seconds to notice, then SIGTERM, then SIGKILL,
    as a scheduler does that ends a job with its first failed task.
    """
    first, failed_at, asked = 0, 0.0, False
    try:
        while True:
            codes = [one.poll() for one in started]
            bad = [code for code in codes if code]
            if bad and not first:
                first, failed_at = (bad[0] if bad[0] > 0 else 128 - bad[0]), time.monotonic()
            if all(code is not None for code in codes):
                return first
            late = time.monotonic() - failed_at - grace if first else -1.0
            if late > 0 and not asked:
                asked = True
                _send(started, signal.SIGTERM)
            if late > 30:
                _send(started, signal.SIGKILL)
            time.sleep(POLL_S)
    finally:
        _send(started, signal.SIGKILL)


def _send(started: Sequence[subprocess.Popen[Any]], number: signal.Signals) -> None:
    for one in started:
        if one.poll() is None:
            with suppress(ProcessLookupError):
                one.send_signal(number)
