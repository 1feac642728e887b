"""Burn CPU time: ``threads`` processes, each on one of ``cpus`` where given."""

from __future__ import annotations

import os
import signal

from fabwatch.chaos.helpers import Carrier, carry

_burning: list[int] = []


def begin(carrier: Carrier) -> None:
    """Fork the burners; each dies with this process."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    cpus = [int(one) for one in carrier.spec.texts("cpus")]
    parent = os.getpid()
    for number in range(carrier.spec.whole("threads")):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(0)
            if cpus:
                os.sched_setaffinity(0, {cpus[number % len(cpus)]})
            while True:
                sum(range(100_000))
        _burning.append(pid)


def go_on(carrier: Carrier) -> None:
    """Until it is over."""
    while not carrier.over(0.2):
        pass
    for pid in _burning:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    carry(begin, go_on)
