"""What faults of processes share: signals that never hit a later owner of a pid, and waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from fabwatch.chaos.model import Json, Refused, Target, Values, Victim
from fabwatch.watchdog import procfs


def victims(state: Values) -> list[Victim]:
    """Those that the state names."""
    return [Victim.from_json(one) for one in state.items_of("victims")]


def victims_json(target: Target) -> list[Json]:
    """For the state."""
    return [v.as_json() for v in target.victims]


def send(victim: Victim, number: int) -> bool:
    """Signal exactly that process; False when it is gone. Raises PermissionError."""
    try:
        fd = os.pidfd_open(victim.pid)
    except (ProcessLookupError, OSError) as err:
        if isinstance(err, PermissionError):
            raise
        return False
    try:
        if not procfs.same(victim.pid, victim.start_ticks):
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)


def signalable(target: Target) -> None:
    """Raise :class:`Refused` unless all victims live and may be signalled."""
    for victim in target.victims:
        if not victim.alive():
            raise Refused(f"pid {victim.pid}: gone")
        with contextlib.suppress(ProcessLookupError):
            try:
                os.kill(victim.pid, 0)
            except PermissionError:
                raise Refused(f"pid {victim.pid}: another user's process") from None


def wait_for(true: Callable[[], bool], seconds: float = 2.0, every: float = 0.01) -> bool:
    """Whether ``true()`` came true within ``seconds``."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(every)
    return True


def state_letter(victim: Victim) -> str:
    """R, S, D, T, ...; "" when it is gone."""
    now = procfs.stat(victim.pid)
    if now is None or now.start_ticks != victim.start_ticks:
        return ""
    return now.state


def names(target: Target) -> str:
    """``rank 1 (pid 4711)``, comma between."""
    return ", ".join(
        f"pid {v.pid}" if v.rank is None else f"rank {v.rank} (pid {v.pid})" for v in target.victims
    )
