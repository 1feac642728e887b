"""TCP sockets and protocol counters of the job's network namespace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture import commands, network
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, failed, timed_out


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """netstat.txt from /proc; ss.txt, or proc_net_tcp.txt where ss cannot be had."""
    pid = network.witness(target)
    counters = b"".join(procfs.read(f"/proc/{pid}/net/{name}") for name in ("netstat", "snmp"))
    yield target.save(out / "netstat.txt", counters, mask=False)
    why = "ss is not installed"
    ss = commands.program("ss")
    if ss is not None:
        argv = [*network.entering(target), ss, "-tinpm"]
        ran = commands.run(argv, timeout=target.left(3.0), cap=4 << 20)
        if ran.code == 0:
            yield target.save(out / "ss.txt", ran.out, partial=ran.clipped, mask=False)
            return
        why = ran.why("ss")
    parts = []
    for name in ("tcp", "tcp6"):
        try:
            text = procfs.read(f"/proc/{pid}/net/{name}", 4 << 20)
            parts.append(b"# /proc/net/%s\n%s" % (name.encode(), text))
        except OSError:
            continue
    if parts:
        note = f"{why}: addresses and queues only"
        path = out / "proc_net_tcp.txt"
        yield target.save(path, b"".join(parts), mask=False, note=note, partial=True)
    else:
        yield timed_out(why) if target.left() == 0 else failed(why)


COLLECTOR = Collector(
    name="sockets",
    scope="host",
    tier=2,
    source="sockets",
    needs=("ss",),
    deadline_s=4.0,
    collect=collect,
)
