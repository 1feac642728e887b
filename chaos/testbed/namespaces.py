"""Make and enter Linux namespaces: the system calls that Python has no words for before 3.12."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_MOVE = 0x2000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
PR_SET_PDEATHSIG = 1

_NAMES = {
    CLONE_NEWUSER: "user",
    CLONE_NEWPID: "pid",
    CLONE_NEWNS: "mnt",
    CLONE_NEWNET: "net",
    CLONE_NEWUTS: "uts",
}


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave for namespaces of one's own; raises OSError that names them."""
    names = "+".join(name for bit, name in _NAMES.items() if flags & bit)
    _check(_libc().unshare(flags), f"unshare({names})")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace of ``kind`` behind ``fd``."""
    _check(_libc().setns(fd, kind), f"setns({_NAMES[kind]})")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mount; raises OSError that names the target."""
    result = _libc().mount(
        source.encode(),
        target.encode(),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount({kind or 'bind'} on {target})")


def umount(target: str) -> None:
    """umount2(2), detached."""
    _check(_libc().umount2(target.encode(), 2), f"umount({target})")


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent ends; ends at once if ``parent`` is gone already.

    ``parent`` is the parent's pid as this process sees it (0 from another PID namespace).
    """
    _check(_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)


def become_root_of_own() -> None:
    """A user namespace in which this user is root (and nothing outside)."""
    uid, gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def needs_user_namespace() -> bool:
    """Whether this process lacks CAP_SYS_ADMIN or CAP_NET_ADMIN."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            held = int(line.split()[1], 16)
            return not (held >> 21 & 1 and held >> 12 & 1)
    return True


def start_time(pid: int) -> int:
    """When a process began, in clock ticks since boot; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(text.rsplit(")", 1)[1].split()[19])


def explain(error: OSError) -> str:
    """The error, and what to do about it."""
    advice = {
        errno.EPERM: "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_"
        "clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; docker: --privileged)",
        errno.EACCES: "a security module forbids it (kernel.apparmor_restrict_unprivileged_userns)",
        errno.ENOSPC: "a limit is reached: sysctl user.max_user_namespaces, max_net_namespaces",
        errno.EINVAL: "this kernel lacks that kind of namespace",
    }
    text = error.strerror or str(error)
    tip = advice.get(error.errno or 0)
    return f"{text}; {tip}" if tip else text


_TRY = """
import os, sys
from fabwatch.chaos.testbed import namespaces as n
try:
    if sys.argv[1] == "user":
        n.become_root_of_own()
    n.unshare(n.CLONE_NEWPID | n.CLONE_NEWNS | n.CLONE_NEWNET | n.CLONE_NEWUTS)
    if os.fork() == 0:
        try:
            n.mount("none", "/", None, n.MS_REC | n.MS_PRIVATE)
            n.mount("proc", "/proc", "proc", n.MS_NOSUID | n.MS_NODEV | n.MS_NOEXEC)
        except OSError as err:
            print(n.explain(err), flush=True)
        os._exit(0)
    os.wait()
except OSError as err:
    print(n.explain(err), flush=True)
"""


@cache
def why_not(rootless: bool = False) -> str | None:
    """Why no test bed can be made here, or None if one can; tried in a process of its own."""
    if not sys.platform.startswith("linux"):
        return "test beds are made of Linux namespaces; this is not Linux"
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        return "pyroute2 is not installed: pip install 'fabwatch[chaos]'"
    kind = "user" if rootless or needs_user_namespace() else "root"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY, kind], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        return f"the attempt to make namespaces did not end: {err}"
    if done.returncode == 0 and not done.stdout:
        return None
    said = (done.stdout or done.stderr).strip().splitlines()
    return said[-1] if said else f"the attempt ended with status {done.returncode}"
