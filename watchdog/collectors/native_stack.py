"""C and Python frames of each rank: py-spy --native of a living one, the core of a dead one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import cgroups, procfs
from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, timed_out
from fabwatch.watchdog.collectors.python_stack import MISSING, without_locals

DEADLINE_S = 8.0
CORE_CAP = 64 << 30
_STOP_BIT = 1 << (signal.SIGSTOP - 1)


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """Attaching stops every thread for a moment, so only a process that can stop is attached."""
    now = procfs.stat(target.pid)
    if now is None or not target.alive() or now.state in "ZX":
        yield _core(target, out)
        return
    spy = commands.program("py-spy")
    if spy is None:
        yield absent(MISSING)
        return
    why = unsafe(target.pid)
    if why:
        yield failed(f"not attached: {why}; the Python stack was taken without attaching")
        return
    try:
        ran = commands.run(
            [spy, "dump", "--native", "--pid", str(target.pid)],
            timeout=target.left(DEADLINE_S), cap=8 << 20,
        )  # fmt: skip
    finally:
        undo(target)
    if ran.code is None:
        yield timed_out(ran.why("py-spy --native"))
    elif ran.code != 0:
        yield failed(ran.why("py-spy --native"))
    else:
        path = out / target.named("pyspy_native_rank_N.txt")
        yield target.save(path, without_locals(ran.out), cap=2 << 20, partial=ran.clipped)


def unsafe(pid: int) -> str:
    """Why attaching to ``pid`` could hang or leave it stopped; "" when it is safe.

    PTRACE_ATTACH queues a SIGSTOP. A thread that cannot take it now (uninterruptible, frozen)
    keeps it, and would stop when it wakes after the tracer has gone.
    """
    if cgroups.frozen(pid):
        return "its cgroup is frozen"
    by = procfs.tracer(pid)
    if by:
        return f"process {by} traces it already"
    for tid in procfs.tasks(pid):
        now = procfs.stat(pid, tid)
        if now is not None and now.state in "Tt":
            return f"it is stopped (state {now.state})"
        if now is not None and now.state == "D":
            return f"thread {tid} is uninterruptible (state D)"
    return ""


def undo(target: Target) -> None:
    """Take back a SIGSTOP that a killed py-spy left pending or in force: it was not stopped before.

    Waits a moment first: a tracer that is just ending still shows up as a stop.
    """
    for _ in range(20):
        if not target.alive():
            return
        now = procfs.stat(target.pid)
        if now is not None and now.state == "t" and procfs.tracer(target.pid):
            time.sleep(0.01)
            continue
        break
    if stop_is_pending(target.pid):
        os.kill(target.pid, signal.SIGCONT)


def stop_is_pending(pid: int) -> bool:
    """Whether the process stands stopped, or has a SIGSTOP that it has not taken yet."""
    for tid in procfs.tasks(pid):
        now = procfs.stat(pid, tid)
        if now is not None and now.state == "T":
            return True
        try:
            lines = procfs.read(f"/proc/{pid}/task/{tid}/status", 65536).splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith((b"SigPnd:", b"ShdPnd:")) and int(line.split()[1], 16) & _STOP_BIT:
                return True
    return False


# ------------------------------------------------------------------ cores of the dead


def _core(target: Target, out: Path) -> Outcome:
    """Stacks from a core file, if the kernel left one where it can be found."""
    core, where = _find_core(target)
    if core is None:
        return absent(f"process {target.pid} has ended and left no core ({where})")
    gdb = commands.program("gdb")
    if gdb is None:
        return absent(f"core file {core} kept where it is; no gdb here to read it")
    argv = [
        gdb, "--batch", "-nx", "-iex", "set auto-load no", "-iex", "set debuginfod enabled off",
        "-ex", "info threads", "-ex", "thread apply all bt 64", "--core", str(core),
    ]  # fmt: skip
    ran = commands.run(argv, timeout=target.left(DEADLINE_S), cap=4 << 20)
    if ran.code is None:
        return timed_out(f"{ran.why('gdb')}; core file: {core}")
    path = out / target.named("core_rank_N.txt")
    return target.save(path, ran.out + ran.err, note=f"from {core}", partial=ran.clipped)


def _find_core(target: Target) -> tuple[Path | None, str]:
    pattern = procfs.read("/proc/sys/kernel/core_pattern", 4096).decode().strip()
    pid = str(target.pid)
    places: list[Path] = []
    if pattern.startswith("|"):
        places += sorted(Path("/var/lib/systemd/coredump").glob(f"core.*.{pid}.*"))
    elif pattern:
        cwd = Path(target.job.run_dir)
        try:
            launch = json.loads(procfs.read(cwd / "launch.json"))
            cwd = Path(str(launch.get("cwd") or cwd))
        except (OSError, ValueError, AttributeError):
            pass
        path = cwd / pattern
        names = {path.name, f"{path.name}.{pid}", path.name.replace("%p", pid)}
        if "%p" in pattern or not pattern.count("%"):
            places += [path.with_name(name) for name in sorted(names)]
        if "%" in path.name:
            glob = "".join("*" if part is None else part for part in _percent(path.name, pid))
            places += sorted(path.parent.glob(glob))
    for place in places:
        try:
            info = place.stat()
        except OSError:
            continue
        # A core called just ``core`` may be anybody's: it must name the pid.
        if place.is_file() and 0 < info.st_size <= CORE_CAP and pid in place.name:
            return place, pattern
    return None, f"core_pattern {pattern!r}"


def _percent(name: str, pid: str) -> Iterator[str | None]:
    """``name`` of a core pattern in pieces: the pid where it says so, None for anything else."""
    letters = iter(name)
    for letter in letters:
        if letter != "%":
            yield "[[]" if letter == "[" else letter
            continue
        what = next(letters, "%")
        yield pid if what in "pP" else "%" if what == "%" else None


COLLECTOR = Collector(
    name="native-stack",
    scope="rank",
    tier=2,
    source="native-stack",
    needs=("py-spy", "gdb for core files"),
    deadline_s=DEADLINE_S + 0.3,
    perturbs="stops the process while py-spy reads symbols: 0.1 to 2 s",
    at_once=max(2, os.cpu_count() or 1),
    living=False,
    collect=collect,
    undo=undo,
)
