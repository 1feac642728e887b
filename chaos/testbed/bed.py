"""The processes that are a test bed: `python -m fabwatch.chaos.testbed.bed SPEC-AS-JSON`.

The outer process makes the namespaces and waits. The inner one is process 1 of a PID namespace and
lives in the namespace of the switch (one bridge for each rail); it forks one holder for each host.
It prints one JSON line on standard output when all stands, or what failed, and ends when standard
input closes, when its time is over, or on SIGTERM. Its end is the end of everything inside.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from fabwatch.chaos.testbed import namespaces as ns
from fabwatch.chaos.testbed.spec import Host, Spec


def tell(**what: object) -> None:
    """One JSON line to whoever started the bed."""
    os.write(1, json.dumps(what).encode() + b"\n")


def main(argv: list[str]) -> int:
    """Make the namespaces, start the inner process, wait for its end."""
    spec = Spec(**{**json.loads(argv[0]), "gpus": tuple(json.loads(argv[0]).get("gpus", ()))})
    forced = "rootless" in argv[1:]
    for number in (signal.SIGINT, signal.SIGHUP):  # a terminal's; the owner decides
        signal.signal(number, signal.SIG_IGN)
    try:
        if forced or ns.needs_user_namespace():
            ns.become_root_of_own()
        ns.unshare(ns.CLONE_NEWPID | ns.CLONE_NEWNS | ns.CLONE_NEWNET | ns.CLONE_NEWUTS)
    except OSError as err:
        tell(error=ns.explain(err))
        return 1
    gate, opened = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(opened)
        try:
            ns.die_with_parent(0)
            os.read(gate, 1)
            inner(spec)
        except BaseException as err:
            tell(error=ns.explain(err) if isinstance(err, OSError) else f"{err!r}")
        os._exit(1)
    tell(init=child)
    os.close(0)
    os.write(opened, b"x")
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGKILL))
    _, status = os.waitpid(child, 0)
    return 0 if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else 1


def inner(spec: Spec) -> NoReturn:
    """Process 1: the switch, and the parent of the hosts."""
    arrange_files(spec)
    from pyroute2 import IPRoute

    holders = []
    for host in spec.plan():
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            hold(host, theirs)
        theirs.close()
        holders.append((host, pid, ours))
    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
        for rail in range(spec.rails):
            route.link("add", ifname=f"rail{rail}", kind="bridge", br_stp_state=0)
            index = route.link_lookup(ifname=f"rail{rail}")[0]
            quiet(f"rail{rail}")
            route.link("set", index=index, state="up")
        for host, pid, line in holders:
            expect(line, "apart")
            for rail, name in enumerate(host.interfaces):
                port = host.switch_port(rail)
                peer = {"ifname": name, "net_ns_pid": pid}
                route.link("add", ifname=port, kind="veth", peer=peer)
                quiet(port)
                bridge = route.link_lookup(ifname=f"rail{rail}")[0]
                index = route.link_lookup(ifname=port)[0]
                route.link("set", index=index, master=bridge, state="up")
            line.sendall(b"wired\n")
            expect(line, "ready")
    tell(hosts={host.name: pid for host, pid, _ in holders})
    watch(spec.seconds)


def expect(line: socket.socket, word: str) -> None:
    """Wait for the holder's word; raises OSError with its reason otherwise."""
    line.settimeout(30)
    said = line.recv(4096).decode().strip()
    if said != word:
        raise OSError(0, said or "a host's process ended while it was being set up")


def quiet(interface: str) -> None:
    """No IPv6 on an interface: no addresses of its own making, no background chatter."""
    with suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def arrange_files(spec: Spec) -> None:
    """Own /proc, and an /etc/hosts that knows the hosts; seen inside the bed only."""
    ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)
    # The tmpfs stays alive below /etc/hosts when /proc has been uncovered again.
    ns.mount("tmpfs", "/proc", "tmpfs", ns.MS_NOSUID | ns.MS_NODEV, "size=1m,mode=755")
    try:
        Path("/proc/hosts").write_text(spec.hosts_file())
        with suppress(OSError):  # an image without the file
            ns.mount("/proc/hosts", "/etc/hosts", None, ns.MS_BIND)
    finally:
        ns.umount("/proc")
    ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)


def hold(host: Host, line: socket.socket) -> NoReturn:
    """A host: namespaces held open by this process, which sleeps."""
    try:
        ns.unshare(ns.CLONE_NEWNET | ns.CLONE_NEWUTS | ns.CLONE_NEWNS)
        socket.sethostname(host.name)
        line.sendall(b"apart\n")
        expect(line, "wired")
        own_sysfs()
        address_interfaces(host)
        line.sendall(b"ready\n")
    except BaseException as err:
        with suppress(OSError):
            line.sendall((ns.explain(err) if isinstance(err, OSError) else repr(err)).encode())
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    while True:
        signal.pause()


def own_sysfs() -> None:
    """A /sys that shows this host's interfaces; where that is forbidden, the machine's stays."""
    with suppress(OSError):
        cgroups = os.path.ismount("/sys/fs/cgroup")
        if cgroups:
            ns.mount("/sys/fs/cgroup", "/mnt", None, ns.MS_BIND | ns.MS_REC)
        try:
            ns.mount("sysfs", "/sys", "sysfs", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
            if cgroups:
                ns.mount("/mnt", "/sys/fs/cgroup", None, ns.MS_BIND | ns.MS_REC)
        finally:
            if cgroups:
                ns.umount("/mnt")


def address_interfaces(host: Host) -> None:
    """Addresses, and everything up."""
    from pyroute2 import IPRoute

    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
        for name, address in zip(host.interfaces, host.addresses, strict=True):
            quiet(name)
            index = route.link_lookup(ifname=name)[0]
            route.addr("add", index=index, address=address, prefixlen=24)
            route.link("set", index=index, state="up")


def watch(seconds: float) -> NoReturn:
    """Reap what is orphaned; leave when the owner does, or when the time is over."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    deadline = time.monotonic() + seconds if seconds else None
    owner: list[int] = [0]
    while True:
        left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
        if left <= 0:
            os._exit(0)
        readable, _, _ = select.select(owner, [], [], left)
        if readable and os.read(0, 4096) == b"":
            os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
