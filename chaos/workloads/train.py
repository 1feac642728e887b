"""A small real training job, CPU or GPU, into which one fault can be put.

Run it with any launcher: ``torchrun --nproc-per-node 4 -m fabwatch.chaos.workloads.train --fault
sigstop --culprit 1 --after 30``. Without ``--fault`` it trains until ``--steps`` or ``--seconds``.

Standard output holds a few fixed lines only, so that two runs can be compared byte by byte;
progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fabwatch.chaos.workloads.faults import FAULTS, Context, Fault
from fabwatch.chaos.workloads.rhythms import RHYTHMS

FEATURES = 64


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random regression samples; ``before`` is called for each item (faults hook in there)."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.before: Callable[[int], None] = lambda index: None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.before(index)
        generator = torch.Generator().manual_seed(index)
        sample = torch.randn(FEATURES, generator=generator)
        return sample, sample.sum().reshape(1)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options of the job."""
    parser = argparse.ArgumentParser(prog="fabwatch.chaos.workloads.train", description=__doc__)
    parser.add_argument("--fault", choices=sorted(FAULTS), help="what breaks (default: nothing)")
    parser.add_argument("--culprit", type=int, default=1, help="the rank that breaks")
    parser.add_argument("--after", type=float, default=30.0, help="seconds of steps before it")
    parser.add_argument("--rhythm", choices=sorted(RHYTHMS), default="steady")
    parser.add_argument("--parallel", choices=["loop", "ddp"], default="loop")
    parser.add_argument("--step-seconds", type=float, default=0.05, help="think time of a step")
    parser.add_argument("--steps", type=int, default=0, help="end after so many steps")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds")
    parser.add_argument("--timeout", type=float, default=1800.0, help="of the process group, s")
    parser.add_argument("--workers", type=int, default=0, help="data-loader workers")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--state-dir", type=Path, help="where to leave rank-N.pid and fault.at")
    return parser.parse_args(argv)


def endless(loader: DataLoader[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[list[torch.Tensor]]:
    """Batches without end."""
    while True:
        yield from loader


def next_batch(batches: Iterator[list[torch.Tensor]], device: torch.device) -> list[torch.Tensor]:
    """The next batch, on the device."""
    return [part.to(device) for part in next(batches)]


def average_gradients(model: nn.Module, world: int) -> None:
    """What DDP does, by hand: one all_reduce for each parameter."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world


def note(options: argparse.Namespace, name: str, text: str) -> None:
    """Leave ``text`` in the state directory, whole or not at all."""
    if options.state_dir is not None:
        part = options.state_dir / f".{name}.part"
        part.write_text(text)
        part.rename(options.state_dir / name)


def agreed(mine: bool, device: torch.device) -> bool:
    """Whether any rank says so: all ranks get the same answer at the same step."""
    flag = torch.tensor([1.0 if mine else 0.0], device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def share_gpus() -> None:
    """Let several ranks use one GPU: NCCL refuses that only to ranks of one host.

    What the user set stays. Before the process group is made.
    """
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if ranks > torch.cuda.device_count():
        os.environ.setdefault("NCCL_HOSTID", f"drill-{os.environ.get('LOCAL_RANK', '0')}")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def train(options: argparse.Namespace) -> None:
    """The loop."""
    rank, world = dist.get_rank(), dist.get_world_size()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", local % torch.cuda.device_count())
        torch.cuda.set_device(device)
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))
    model.to(device)
    if options.parallel == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    dataset = Batches(1 << 16)
    loader = DataLoader(dataset, batch_size=8, num_workers=options.workers)
    batches = endless(loader)
    fault: Fault | None = FAULTS.get(options.fault) if options.fault else None
    peer = (options.culprit + 1) % world
    context = Context(
        rank=rank, world=world, culprit=options.culprit, peer=peer, device=device,
        model=model, dataset=dataset, state_dir=options.state_dir,
    )  # fmt: skip
    if fault is not None and fault.prepare is not None:
        fault.prepare(context)
    rhythm = RHYTHMS[options.rhythm](context)
    started = time.monotonic()
    armed_at: int | None = None
    step = 0
    while True:
        elapsed = time.monotonic() - started
        due = fault is not None and armed_at is None and elapsed >= options.after
        over = (options.steps and step >= options.steps) or (
            options.seconds and elapsed >= options.seconds
        )
        if rhythm.synchronises:
            if agreed(due, device):
                armed_at = step + 1
            if agreed(bool(over), device):
                break
        elif rhythm.over(bool(over)):
            break
        rhythm.before_step(step)
        if armed_at == step and fault is not None:
            if rank == context.culprit:
                note(options, "fault.at", str(time.time()))
            if fault.strikes(context):
                fault.strike(context)
        if rhythm.trains:
            inputs, targets = next_batch(batches, device)
            time.sleep(options.step_seconds)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types for it
            if options.parallel == "loop":
                average_gradients(model, world)
            optimizer.step()
        rhythm.after_step(step)
        if rank == 0 and step % 100 == 0:
            print(f"step {step}", file=sys.stderr, flush=True)
        step += 1
    if rank == 0:
        took = time.monotonic() - started
        print(f"train: {step} steps in {took:.3f} s", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> None:
    """Join the job, train, leave."""
    options = parse(argv)
    torch.set_num_threads(1)
    if options.backend == "nccl":
        share_gpus()
    dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout))
    note(options, f"rank-{dist.get_rank()}.pid", str(os.getpid()))
    if dist.get_rank() == 0:
        print("train: begin", flush=True)
    train(options)
    if dist.get_rank() == 0:
        print("train: end", flush=True)
    with contextlib.suppress(RuntimeError):
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
