"""Faults that a workload does to itself at an agreed step, for drills that need no privileges.

A fault here is a mistake or a failure as users make it: in plain sight of stacks and recorders,
with nothing that names it for the diagnosis.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class Context:
    """What a fault may use. ``peer`` is the partner of two-sided faults (culprit + 1)."""

    rank: int
    world: int
    culprit: int
    peer: int
    device: torch.device
    model: torch.nn.Module
    dataset: Any
    state_dir: Path | None
    groups: dict[str, Any] = field(default_factory=dict)

    def blob(self, length: int = 1024) -> torch.Tensor:
        """A tensor for a collective."""
        return torch.ones(length, device=self.device)


@dataclass(frozen=True)
class Fault:
    """``strike`` runs at the agreed step on the ranks for which ``strikes`` is true."""

    says: str
    strike: Callable[[Context], None]
    strikes: Callable[[Context], bool] = lambda c: c.rank == c.culprit
    prepare: Callable[[Context], None] | None = None


def everybody(context: Context) -> bool:
    """The fault needs all ranks to take part."""
    return True


def stop(context: Context) -> None:
    """Stop like an operator's kill -STOP."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stall_in_loader(context: Context) -> None:
    """The next sample never comes."""

    def fetch(index: int) -> None:
        time.sleep(100_000)

    context.dataset.before = fetch


def hold_gil(context: Context) -> None:
    """A regular expression that backtracks for ever, in C, with the GIL."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def kill(context: Context) -> None:
    """Die like by kill -9."""
    os.kill(os.getpid(), signal.SIGKILL)


def segfault(context: Context) -> None:
    """Read address zero."""
    ctypes.string_at(0)


def fail(context: Context) -> None:
    """A bug."""
    raise ValueError("bad sample in batch")


def leave(context: Context) -> None:
    """Somebody thought that the work was done."""
    sys.exit(0)


def other_op(context: Context) -> None:
    """The culprit broadcasts while the others reduce."""
    blob = context.blob()
    if context.rank == context.culprit:
        dist.broadcast(blob, src=context.culprit)
    else:
        dist.all_reduce(blob)


def other_size(context: Context) -> None:
    """The culprit reduces a tensor of another size."""
    dist.all_reduce(context.blob(4096 if context.rank == context.culprit else 1024))


def smaller_size(context: Context) -> None:
    """The culprit reduces a much smaller tensor: Gloo aborts it, and its record goes with it."""
    dist.all_reduce(context.blob(60 if context.rank == context.culprit else 50_000))


def other_dtype(context: Context) -> None:
    """The culprit reduces as many bytes of another type."""
    if context.rank == context.culprit:
        dist.all_reduce(context.blob(512).to(torch.float64))
    else:
        dist.all_reduce(context.blob(1024))


def make_pair_groups(context: Context) -> None:
    """Two groups of the same two ranks; making a group is collective."""
    pair = sorted({context.culprit, context.peer})
    context.groups = {"first": dist.new_group(pair), "second": dist.new_group(pair)}
    if context.rank in pair:
        for group in context.groups.values():
            dist.all_reduce(context.blob(8), group=group)


def crossed_groups(context: Context) -> None:
    """Two ranks enter two groups in opposite order."""
    if context.rank not in (context.culprit, context.peer):
        return
    order = ["first", "second"]
    if context.rank == context.culprit:
        order.reverse()
    for name in order:
        dist.all_reduce(context.blob(), group=context.groups[name])


def lonely_receive(context: Context) -> None:
    """Receive what nobody sends."""
    dist.recv(context.blob(), src=context.peer)


def receive_cycle(context: Context) -> None:
    """Two ranks receive from each other and neither sends."""
    if context.rank == context.culprit:
        dist.recv(context.blob(), src=context.peer)
    elif context.rank == context.peer:
        dist.recv(context.blob(), src=context.culprit)


def lonely_barrier(context: Context) -> None:
    """``if rank == 0: barrier()``."""
    dist.barrier()


def save_checkpoint(state: dict[str, torch.Tensor], path: Path) -> None:
    """Write a checkpoint to storage that takes its time: little by little, synced."""
    with path.open("wb") as file:
        for _ in range(1_000_000):
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
            if file.tell() > 1 << 24:
                file.seek(0)
            time.sleep(0.2)


def slow_checkpoint(context: Context) -> None:
    """One rank writes a checkpoint while the others train on."""
    folder = context.state_dir or Path("/tmp")
    save_checkpoint(context.model.state_dict(), folder / f"checkpoint-{context.rank}.pt")


def kill_loader_worker(context: Context) -> None:
    """A data-loader worker dies like by kill -9."""
    import multiprocessing

    for child in multiprocessing.active_children():
        if child.pid:
            os.kill(child.pid, signal.SIGKILL)


def eat_memory(context: Context) -> None:
    """Allocate until the limit of the memory cgroup strikes (the drill put us into one)."""
    hoard = []
    for _ in range(100_000):
        hoard.append(bytearray(os.urandom(1 << 16)) * 64)
        time.sleep(0.005)


def wait_to_be_struck(context: Context) -> None:
    """The drill does it from outside; carry on until it happens."""


def spin_gpu(context: Context) -> None:
    """A kernel that never ends on the culprit's GPU."""
    torch.cuda._sleep(1 << 62)  # type: ignore[no-untyped-call]  # torch has no types for it


FAULTS: dict[str, Fault] = {
    "sigstop": Fault("a rank is stopped by SIGSTOP", stop),
    "loader-sleep": Fault("a rank waits for its data for ever", stall_in_loader),
    "gil": Fault("a rank holds the GIL in a regular expression", hold_gil),
    "sigkill": Fault("a rank dies of SIGKILL", kill),
    "segfault": Fault("a rank dies of SIGSEGV", segfault),
    "exception": Fault("a rank raises an exception", fail),
    "exit-0": Fault("a rank calls sys.exit(0) early", leave),
    "op-mismatch": Fault("a rank calls another collective", other_op, everybody),
    "size-mismatch": Fault("a rank reduces another size", other_size, everybody),
    "size-smaller": Fault("a rank reduces a smaller size", smaller_size, everybody),
    "dtype-mismatch": Fault("a rank reduces another dtype", other_dtype, everybody),
    "crossed-groups": Fault(
        "two ranks enter two groups in opposite order", crossed_groups, everybody, make_pair_groups
    ),
    "recv-unmatched": Fault("a rank receives what nobody sends", lonely_receive),
    "recv-cycle": Fault("two ranks receive from each other", receive_cycle, everybody),
    "conditional": Fault("a collective that only one rank calls", lonely_barrier),
    "slow-checkpoint": Fault("a rank writes a slow checkpoint", slow_checkpoint),
    "frozen": Fault("a rank's cgroup is frozen (from outside)", wait_to_be_struck),
    "worker-killed": Fault("a data-loader worker is killed", kill_loader_worker),
    "oom": Fault("a rank is killed by its memory cgroup's limit", eat_memory),
    "gpu-spin": Fault("a GPU kernel never ends", spin_gpu),
}
"""Fault name -> fault."""
