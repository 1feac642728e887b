"""Run other programs with a deadline, a bound on their output, and no way to outlive us."""

from __future__ import annotations

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fabwatch.watchdog.capture.files import HeadTail

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Ask the kernel to SIGKILL this process when the thread that forked it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command ended. ``code`` None: killed at its deadline (``stuck``: even so alive)."""

    code: int | None
    out: bytes
    err: bytes
    clipped: bool = False
    stuck: bool = False

    def why(self, name: str) -> str:
        """One line for the ledger: the last thing it said on stderr, or its exit code."""
        if self.code is None:
            left = "; it cannot be killed (state D) and was left behind" if self.stuck else ""
            return f"{name} did not end in time and was killed{left}"
        said = [x for x in self.err.decode(errors="replace").splitlines() if x.strip()]
        return f"{name}: {said[-1].strip()[:200]}" if said else f"{name}: exit code {self.code}"


def run(argv: Sequence[str], *, timeout: float, cap: int = 4 << 20) -> Ran:
    """Run ``argv`` for at most ``timeout`` seconds; keep ``cap`` bytes of stdout, 64 KiB of stderr.

    Never waits longer than the timeout and a moment. Raises OSError if it cannot be started.
    """
    until = time.monotonic() + timeout
    child = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        preexec_fn=die_with_parent,
    )
    out, err = HeadTail(cap // 2, cap - cap // 2), HeadTail(1 << 15, 1 << 15)
    with selectors.DefaultSelector() as ready:
        for pipe, into in ((child.stdout, out), (child.stderr, err)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            ready.register(pipe, selectors.EVENT_READ, into)
        while ready.get_map():
            left = until - time.monotonic()
            if left <= 0:
                break
            for key, _ in ready.select(left):
                data = os.read(key.fd, 1 << 16)
                if data:
                    key.data.feed(data)
                else:
                    ready.unregister(key.fileobj)
    stuck = False
    try:
        code: int | None = child.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        code = None
        child.kill()
        try:
            child.wait(0.3)
        except subprocess.TimeoutExpired:
            stuck = True
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    head, tail = out.parts()
    if not out.whole:
        head += b"\n[fabwatch: %d bytes cut out here]\n" % (out.total - len(head) - len(tail))
    return Ran(code, head + tail, b"".join(err.parts()), not out.whole, stuck)


@cache
def program(name: str) -> str | None:
    """The path of a program: beside our interpreter, in its scripts folder, in PATH, in sbin."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    path = os.environ.get("PATH", os.defpath)
    return shutil.which(name, path=f"{path}:/usr/sbin:/sbin:/usr/local/sbin")
