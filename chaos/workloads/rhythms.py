"""Rhythms of healthy jobs: what must never raise an alarm."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from fabwatch.chaos.workloads.faults import Context


class Steady:
    """Equal steps. ``synchronises``: the loop may use its own small collectives each step."""

    synchronises = True
    trains = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.started = time.monotonic()

    def over(self, due: bool) -> bool:
        """Whether this rank ends now; ``due``: its own time or step count is up."""
        return due

    def before_step(self, step: int) -> None:
        """What happens before step ``step``."""

    def after_step(self, step: int) -> None:
        """What happens after it."""


class Irregular(Steady):
    """Steps of 3 to 15 seconds, the same on all ranks."""

    def before_step(self, step: int) -> None:
        """Work for a while."""
        time.sleep(random.Random(step).uniform(3, 15))


def evaluate(seconds: float) -> float:
    """Rank 0 looks at the validation set alone."""
    until, total = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        total += float(torch.randn(64, 64).matmul(torch.randn(64, 64)).sum())
        time.sleep(0.01)
    return total


class EvaluatesOnRank0(Steady):
    """After 35 s of steps rank 0 evaluates for 30 s while the others wait for it."""

    done = False

    def before_step(self, step: int) -> None:
        """Evaluate once."""
        if not self.done and time.monotonic() - self.started > 35:
            self.done = True
            if self.context.rank == 0:
                evaluate(30)


class CompilesFirst(Steady):
    """40 s of compiling before the first step."""

    def before_step(self, step: int) -> None:
        """Compile on the first step."""
        if step == 0:
            until = time.monotonic() + 40
            while time.monotonic() < until:
                compile("\n".join(f"x{i} = {i} * {i}" for i in range(500)), "<model>", "exec")
                time.sleep(0.01)


class ComputesAlone(Steady):
    """After 35 s of steps a minute without any collective, on all ranks."""

    done = False

    def before_step(self, step: int) -> None:
        """Compute for a minute."""
        if not self.done and time.monotonic() - self.started > 35:
            self.done = True
            until = time.monotonic() + 60
            while time.monotonic() < until:
                torch.randn(64, 64).matmul(torch.randn(64, 64))
                time.sleep(0.005)


class Pipeline(Steady):
    """Stages that only send and receive: rank r gets from r-1 and hands on to r+1.

    The first stage marks its last micro-batch, so that all stages end after the same one.
    """

    synchronises = False
    trains = False
    last = False  # the first stage: the next micro-batch is the last one
    ended = False

    def over(self, due: bool) -> bool:
        """Whether the last micro-batch has passed."""
        self.last = self.last or (due and self.context.rank == 0)
        return self.ended

    def before_step(self, step: int) -> None:
        """One micro-batch through this stage."""
        rank, world = self.context.rank, self.context.world
        activation = torch.full((256,), -1.0 if self.last else 1.0)
        if rank > 0:
            dist.recv(activation, src=rank - 1)
        time.sleep(0.05)
        if rank < world - 1:
            dist.send(activation, dst=rank + 1)
        self.ended = bool(activation[0] < 0)
        if rank == 0 and step % 100 == 0:
            print(f"micro-batch {step}", file=sys.stderr, flush=True)


RHYTHMS: dict[str, Callable[[Context], Steady]] = {
    "steady": Steady,
    "irregular": Irregular,
    "evaluation": EvaluatesOnRank0,
    "compile": CompilesFirst,
    "compute-only": ComputesAlone,
    "pipeline": Pipeline,
}
"""Rhythm name -> what makes it."""
