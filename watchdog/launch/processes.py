"""Start the processes around a job without leaking descriptors, signals or variables into them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
"""What every Python start ignores; a job gets the default back."""


def inherited_environment() -> dict[str, str]:
    """The environment that the stub was given.

    In the C locale Python adds LC_CTYPE=C.UTF-8 to its own (PEP 538); a job must not inherit it.
    """
    environ = dict(os.environ)
    if environ.get("LC_CTYPE") in ("C.UTF-8", "C.utf8", "UTF-8"):
        try:
            given = Path("/proc/self/environ").read_bytes().split(b"\0")
        except OSError:
            return environ
        if not any(item.startswith(b"LC_CTYPE=") for item in given):
            del environ["LC_CTYPE"]
    return environ


def occupy_closed_streams() -> None:
    """Put a close-on-exec /dev/null where 0, 1 or 2 is closed, so that nothing else lands there."""
    while True:
        try:
            fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        if fd > 2:
            os.close(fd)
            return


def explained(err: BaseException) -> str:
    """Why something could not be started or made, and what to do about it where a limit was hit."""
    why = str(getattr(err, "strerror", None) or err)
    number = getattr(err, "errno", None)
    if number in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        why += f": the limit of open files is {soft} (hard: {hard}); `ulimit -n 4096` and try again"
    elif number == errno.EAGAIN:
        why += ": the limit of processes is reached (`ulimit -u`, or pids.max of the cgroup)"
    return why


def spawn_apart(
    argv: Sequence[str],
    environ: Mapping[str, str],
    streams: tuple[int, int, int],
    *,
    keep: Collection[int] = (),
    session: bool = False,
    mask: Collection[int] = (),
) -> int:
    """Start one of our own processes; return its pid. Raises OSError.

    It gets ``streams`` as 0, 1 and 2 and ``keep`` under their own numbers, and no other
    descriptor: one that the user handed down would keep his pipes open.
    """
    handed_down = []
    for fd in _open_descriptors():
        with contextlib.suppress(OSError):  # the listing's own descriptor
            if fd > 2 and fd not in keep and os.get_inheritable(fd):
                handed_down.append(fd)
    actions = [(os.POSIX_SPAWN_DUP2, fd, to) for to, fd in enumerate(streams)]
    try:
        # Not POSIX_SPAWN_CLOSE: the C library refuses numbers above the limit of open files,
        # and a descriptor may be older than the limit.
        for fd in handed_down:
            os.set_inheritable(fd, False)
        for fd in keep:
            os.set_inheritable(fd, True)
        return os.posix_spawnp(
            argv[0],
            list(argv),
            dict(environ),
            file_actions=actions,
            setsid=session,
            setsigmask=list(mask),
            setsigdef=[s for s in signal.valid_signals() if s not in (9, 19)],
        )
    finally:
        for fd in keep:
            os.set_inheritable(fd, False)
        for fd in handed_down:
            os.set_inheritable(fd, True)


def _open_descriptors() -> list[int]:
    return sorted(int(entry.name) for entry in Path("/proc/self/fd").iterdir())


def spawn_job(
    argv: Sequence[str],
    environ: Mapping[str, str],
    mask: Collection[int],
    ignores_children: bool,
) -> int:
    """Start the job in our place in every respect but its pid. Raises OSError.

    Same process group, terminal, directory, descriptors; what our parent ignored stays ignored.
    ``ignores_children``: our parent ignored SIGCHLD, so the job must, while we must not.
    """

    def start(words: list[str]) -> int:
        if ignores_children:
            return _fork_with_sigchld_ignored(words, environ, mask)
        return os.posix_spawnp(
            words[0],
            words,
            dict(environ),
            setsigmask=list(mask),
            setsigdef=list(PYTHON_IGNORES),
        )

    try:
        return start(list(argv))
    except OSError as err:
        words = as_script(argv, environ, err)
        if words is None:
            raise
        return start(words)


def _fork_with_sigchld_ignored(
    argv: Sequence[str], environ: Mapping[str, str], mask: Collection[int]
) -> int:
    """Posix_spawn can set a disposition to default only, and shells reset this one."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = errno.ENOEXEC
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for number in PYTHON_IGNORES:
                signal.signal(number, signal.SIG_DFL)
            if callable(signal.getsignal(signal.SIGINT)):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(argv[0], list(argv), dict(environ))
        except OSError as err:
            code = err.errno or code
        finally:
            os.write(tell, code.to_bytes(4, "little"))
            os._exit(126)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        failure = pipe.read(4)  # at its end once exec closed the other side
    if failure:
        reaped(pid, 1.0)
        code = int.from_bytes(failure, "little")
        raise OSError(code, os.strerror(code))
    return pid


def as_script(argv: Sequence[str], environ: Mapping[str, str], err: OSError) -> list[str] | None:
    """What a shell would run where a file without #! was named; None for any other error."""
    if err.errno != errno.ENOEXEC:
        return None
    path = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=environ.get("PATH"))
    return ["/bin/sh", path, *argv[1:]] if path else None


def in_child(
    first: Callable[[], bytes],
    deadline_s: float,
    then: Callable[[], object] | None = None,
) -> tuple[bytes | None, list[int], int]:
    """Run ``first`` in a forked child in a session of its own; return (answer, descriptors, pid).

    The answer is None if the child died or said nothing in time (it is killed and reaped then).
    What ``first`` appends to SENT arrives as descriptors. After answering, the child runs
    ``then`` and ends; the caller reaps it.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.setsid()
            for fd in _open_descriptors():
                if fd > 2 and fd != theirs.fileno():
                    with contextlib.suppress(OSError):
                        os.close(fd)
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            answer = first()
            socket.send_fds(theirs, [len(answer).to_bytes(8, "little")], SENT)
            theirs.sendall(answer)
            theirs.close()
            if then is not None:
                then()
        except BaseException:
            os._exit(1)
        os._exit(0)
    theirs.close()
    got, fds = _receive(ours, deadline_s)
    ours.close()
    if got is None:
        kill_and_reap(pid)
    return got, fds, pid


SENT: list[int] = []
"""In a child of ``in_child``: the descriptors that go to the parent with the answer."""


def _receive(sock: socket.socket, deadline_s: float) -> tuple[bytes | None, list[int]]:
    until = time.monotonic() + deadline_s
    data = b""
    fds: list[int] = []
    size = -1
    while size < 0 or len(data) < size:
        # Not select(): a process that was handed a thousand descriptors has numbers above 1023.
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
            return None, _close_all(fds)
        if size < 0:
            chunk, fds, _, _ = socket.recv_fds(sock, 8, 4)
            if len(chunk) < 8:
                return None, _close_all(fds)
            for fd in fds:
                os.set_inheritable(fd, False)
            size = int.from_bytes(chunk, "little")
            continue
        chunk = sock.recv(65536)
        if not chunk:
            return None, _close_all(fds)
        data += chunk
    return data, fds


def _close_all(fds: list[int]) -> list[int]:
    for fd in fds:
        os.close(fd)
    return []


def kill_and_reap(pid: int, patience_s: float = 0.5, group: bool = False) -> bool:
    """SIGKILL our own child ``pid`` (its whole group) and reap it; one in D state is left behind.

    Returns whether it is gone. Safe to call for a child that was reaped already only if the
    caller knows that it was not: pids are reused.
    """
    for send in (os.killpg, os.kill) if group else (os.kill,):
        try:
            send(pid, signal.SIGKILL)
        except OSError:
            continue
    return reaped(pid, patience_s)


def reaped(pid: int, patience_s: float) -> bool:
    """Wait for our child ``pid`` to end, at most ``patience_s``; whether it did."""
    until = time.monotonic() + patience_s
    while True:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
