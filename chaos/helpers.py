"""Processes that carry a fault: journalled before they may act, gone when nobody holds them.

A helper waits on its standard input for ``go``. It ends at the end of that input (the injector
is gone), at its deadline, or at SIGTERM; so its fault is over then, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from fabwatch.chaos.model import Json, Note, Refused, Values, Victim

START_S = 30.0
_children: dict[int, subprocess.Popen[bytes]] = {}


def start(module: str, spec: Mapping[str, Json], state: Values, note: Note) -> int:
    """Run ``python -m fabwatch.chaos.carriers.<module>``; its pid. :class:`Refused` if it fails.

    Its identity is in the journal (``helper``) before it may act; it has acted on return.
    """
    whole = {**spec, "until_ns": state["until_ns"]}
    child = subprocess.Popen(
        [sys.executable, "-m", f"fabwatch.chaos.carriers.{module}", json.dumps(whole)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _children[child.pid] = child
    note({"helper": Victim.of(child.pid).as_json()})
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(b"go\n")
        child.stdin.flush()
    ready, _, _ = select.select([child.stdout], [], [], START_S)
    answer = os.read(child.stdout.fileno(), 1) if ready else b""
    if answer != b".":
        child.kill()
        told = child.communicate()[1].decode(errors="replace").strip()
        raise Refused(f"the helper {module} failed: {told or 'no answer'}")
    return child.pid


def helper_of(state: Values) -> Victim | None:
    """The helper that the state names."""
    values = state.get("helper")
    return Victim.from_json(Values(values)) if isinstance(values, dict) else None


def running(state: Values) -> bool:
    """Whether the helper lives."""
    one = helper_of(state)
    return one is not None and one.alive()


def stop(state: Values, seconds: float = 3.0) -> None:
    """End the helper: SIGTERM, after ``seconds`` SIGKILL. Nothing if it is gone."""
    one = helper_of(state)
    if one is None:
        return
    for number, patience in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        if not one.alive():
            break
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(one.pid)
            try:
                if one.alive():
                    signal.pidfd_send_signal(fd, number)
                    select.select([fd], [], [], patience)
            finally:
                os.close(fd)
    child = _children.pop(one.pid, None)
    if child is not None:
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1.0)


class Carrier:
    """The helper's side: when to begin, and when it is over."""

    def __init__(self) -> None:
        self.spec = Values(json.loads(sys.argv[1]))
        self._until = self.spec.number("until_ns") / 1e9
        self._ended = False
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _end(self, number: int, frame: object) -> None:
        self._ended = True

    def over(self, wait_s: float = 0.0) -> bool:
        """Whether to stop now; looks for at most ``wait_s`` seconds."""
        left = self._until - time.monotonic()
        if self._ended or left <= 0:
            return True
        ready, _, _ = select.select([0], [], [], max(0.0, min(wait_s, left)))
        if ready and not os.read(0, 64):
            return True
        return self._ended


def carry(begin: Callable[[Carrier], None], go_on: Callable[[Carrier], Any]) -> None:
    """Wait for ``go``; then ``begin``, say so, and ``go_on`` until it returns. For ``__main__``."""
    carrier = Carrier()
    if os.read(0, 64) != b"go\n":
        return
    begin(carrier)
    os.write(1, b".")
    go_on(carrier)
