"""Tell which signals were meant for the job and reached only the stub."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fabwatch.watchdog.launch.processes import kill_and_reap, spawn_apart

ALL = frozenset(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
SENT_BY_PROCESS = frozenset({0, -1, -6})
"""si_code SI_USER, SI_QUEUE, SI_TKILL; the terminal and the kernel use others."""

_OWN = frozenset({signal.SIGCHLD, signal.SIGIO})
_HARMLESS = frozenset({signal.SIGWINCH, signal.SIGURG, signal.SIGCHLD, signal.SIGIO})
_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
_CREDIT_S = 1.0
_SECOND_LOOK_S = 0.01


@dataclass(frozen=True)
class Inherited:
    """What the stub's parent gave it: the blocked signals, and whether it ignored SIGCHLD."""

    mask: frozenset[int]
    ignores_children: bool


def take_over() -> Inherited:
    """Block every signal, so that each is taken by sigtimedwait with its sender."""
    mask = frozenset(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ALL))
    ignored = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    return Inherited(mask, ignored)


def pending_of(pid: int) -> set[int]:
    """Signals that wait in ``pid``; empty if that cannot be read."""
    bits = 0
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(("SigPnd:", "ShdPnd:")):
                bits |= int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        return set()
    return {n + 1 for n in range(64) if bits >> n & 1}


class Witness:
    """A sleeping member of the job's process group that shows what the whole group was sent.

    ``kill -TERM -PGID``, `timeout` and schedulers signal stub and job alike, and nothing in
    siginfo tells that from a signal to the stub alone. So a `cat` that reads an empty pipe, with
    every signal blocked, stays in the group: what is pending there reached the job too. It ends
    with the stub, whose death closes the pipe. Where it cannot be started, signals to the group
    arrive in the job twice.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.pid = 0
        self._pipe = -1
        self._credit: dict[int, float] = {}
        self._start()

    def _start(self) -> None:
        opened: list[int] = []
        try:
            read, self._pipe = os.pipe()
            opened.append(read)
            null = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
            opened.append(null)
            self.pid = spawn_apart(["cat"], self.environ, (read, null, null), mask=sorted(ALL))
        except OSError:
            self.pid = 0
        finally:
            for fd in opened:
                os.close(fd)

    def saw(self, number: int) -> bool:
        """Whether ``number``, just taken from the stub's own queue, went to the group as well."""
        if not self.pid:
            return False
        self._look()
        if number not in self._credit:
            time.sleep(_SECOND_LOOK_S)  # a scheduler that signals one pid after the other
            self._look()
        return self._credit.pop(number, None) is not None

    def _look(self) -> None:
        now = time.monotonic()
        self._credit = {n: t for n, t in self._credit.items() if now - t < _CREDIT_S}
        found = pending_of(self.pid) - _HARMLESS
        if found:
            self._credit.update(dict.fromkeys(found, now))
            self.close()  # pending signals cannot be taken back: a new one starts clean
            self._start()

    def lost(self, pid: int) -> None:
        """Hear that child ``pid`` was reaped."""
        if pid == self.pid:
            self.pid = 0

    def close(self) -> None:
        """End and reap it."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self.pid:
            kill_and_reap(self.pid)
            self.pid = 0


class Forwarding:
    """Decide for each signal that the stub takes whether the job must be sent it."""

    def __init__(self, job: int, early: set[int], witness: Witness) -> None:
        self.job = job
        self.early = early - _HARMLESS - {signal.SIGPIPE}
        self.witness = witness
        self.helpers: set[int] = set()
        self._leads = os.getsid(0) == os.getpid()

    def wanted(self, info: signal.struct_siginfo) -> bool:
        """Whether ``info`` was meant for the job and did not reach it."""
        number = info.si_signo
        if number in _OWN:
            return False
        if number == signal.SIGPIPE and info.si_pid == os.getpid():
            return False  # the kernel's answer to a write of our own
        if number in self.early:
            self.early.discard(number)
            return True  # it came before there was a job
        if number in _HARMLESS:
            return info.si_code in SENT_BY_PROCESS
        to_group = self.witness.saw(number)
        if info.si_code in SENT_BY_PROCESS:
            if info.si_pid == self.job or info.si_pid in self.helpers:
                return False  # a job that signals its parent does not mean itself
            return not to_group
        if number == signal.SIGALRM:
            return True  # an alarm(2) set before the exec is the command's, and survives exec
        # A lost terminal tells the session leader alone.
        return self._leads and not to_group and number in (signal.SIGHUP, signal.SIGCONT)


def stop_like(number: int, job: int) -> int:
    """Stop this process by ``number`` until it is continued; return a helper's pid (ended).

    The shell sees what it would have seen of the job. A job that is continued alone (by its pid)
    must not end unseen by a stopped parent, so a helper watches it and continues us too.
    """
    stub = os.getpid()
    try:
        helper = os.fork()
    except OSError:
        helper = -1
    if helper == 0:
        _wake_with(job, stub)
    try:
        if number in _STOPS:
            before = signal.getsignal(number)
            signal.signal(number, signal.SIG_DFL)
            os.kill(stub, number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
            signal.pthread_sigmask(signal.SIG_BLOCK, {number})
            if before is not None:
                signal.signal(number, before)
        else:
            os.kill(stub, signal.SIGSTOP)
    finally:
        if helper > 0:
            kill_and_reap(helper)
    return helper


def _wake_with(job: int, stub: int) -> None:
    """Continue ``stub`` once ``job`` no longer stands still; never returns."""
    try:
        while os.getppid() == stub:
            if _state(job) not in "Tt" and _state(stub) == "T":
                os.kill(stub, signal.SIGCONT)
            time.sleep(0.1)
    finally:
        os._exit(0)


def _state(pid: int) -> str:
    """The state letter of ``pid``; "X" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "X"


def die_of(number: int) -> None:
    """Die of ``number`` without a second core file; returns only where that is impossible."""
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number in (3, 4, 5, 6, 7, 8, 11, 24, 25, 31):
        # A piped core_pattern does not heed the limit, so ask not to be dumped at all.
        with contextlib.suppress(ImportError, OSError, AttributeError):
            import ctypes

            ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    try:
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    except (OSError, ValueError):
        return
