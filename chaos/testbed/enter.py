"""Run a command on a host of a test bed: `python -m fabwatch.chaos.testbed.enter ...`.

``enter INIT START INNER -- ARGV``: INIT is the bed's process 1 as seen from here, START its start
time in clock ticks (a pid alone may be somebody else's by now), INNER the holder of the host as
seen inside, or 1 for the switch. The command is killed when this process is.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from fabwatch.chaos.testbed import namespaces as ns

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def _open(pid: int, name: str) -> int:
    return os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)


def go_in(init: int, start: int, inner: int) -> None:
    """Enter the namespaces; children of this process are inside from now on. Raises OSError."""
    if ns.start_time(init) != start or start == 0:
        raise OSError(0, f"the test bed is gone (its process {init} has ended)")
    fds = {name: _open(init, name) for name in ("user", "pid", "mnt")}
    if not Path(f"/proc/{init}/ns/user").samefile("/proc/self/ns/user"):
        ns.setns(fds["user"], ns.CLONE_NEWUSER)
    where = Path.cwd()
    ns.setns(fds["pid"], ns.CLONE_NEWPID)
    ns.setns(fds["mnt"], ns.CLONE_NEWNS)
    host = {name: _open(inner, name) for name in ("net", "uts", "mnt")}
    ns.setns(host["net"], ns.CLONE_NEWNET)
    ns.setns(host["uts"], ns.CLONE_NEWUTS)
    ns.setns(host["mnt"], ns.CLONE_NEWNS)
    for fd in (*fds.values(), *host.values()):
        os.close(fd)
    with suppress(OSError):  # a directory that is not there inside: / it is
        os.chdir(where)


def main(argv: list[str]) -> int:
    """Enter, run, wait; the exit status is the command's."""
    init, start, inner = (int(word) for word in argv[:3])
    command = argv[4:]
    try:
        go_in(init, start, inner)
    except OSError as err:
        print(f"fabwatch: cannot enter the test bed: {ns.explain(err)}", file=sys.stderr)
        return 125
    child = os.fork()
    if child == 0:
        try:
            ns.die_with_parent(0)
            os.execvp(command[0], command)
        except OSError as err:
            print(f"fabwatch: cannot run {command[0]}: {err.strerror}", file=sys.stderr)
        os._exit(127)
    for number in FORWARDED:
        signal.signal(number, lambda got, _frame: os.kill(child, got))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        fatal = os.WTERMSIG(status)
        with suppress(OSError, ValueError):
            signal.signal(fatal, signal.SIG_DFL)
            os.kill(os.getpid(), fatal)
        return 128 + fatal
    return os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
