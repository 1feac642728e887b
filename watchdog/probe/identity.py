"""Decide which rank this process is, if any: many processes inherit a rank's environment.

A launcher, a data-loader worker, a forkserver or a nested job carries RANK too. The environment
alone is therefore only a claim; an initialised default group is the proof.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

# rank, world size, local rank; the first family that is complete counts
FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)

# Modules that a launcher imports and a rank does not. Kubeflow and srun give the launcher a
# RANK (of the node), so its environment looks like a rank's.
LAUNCHERS = (
    "torch.distributed.elastic.agent.server.api",
    "torch.distributed.launcher.api",
    "torch.distributed.launch",
    "deepspeed.launcher.launch",
    "deepspeed.launcher.runner",
)


class Claim(NamedTuple):
    """What the environment says. ``variable`` is the name that gave the rank."""

    rank: int
    world_size: int
    local_rank: int | None
    variable: str


def _number(text: str | None) -> int | None:
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def claim(environ: Mapping[str, str]) -> Claim | None:
    """The rank that ``environ`` claims, or None."""
    for rank_name, world_name, local_name in FAMILIES:
        rank, world = _number(environ.get(rank_name)), _number(environ.get(world_name))
        if rank is not None and world is not None and 0 <= rank < world:
            return Claim(rank, world, _number(environ.get(local_name)), rank_name)
    return None


def is_worker_process() -> bool:
    """Whether multiprocessing started this process: a helper until it initialises a group."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        return True
    command = list(getattr(sys, "orig_argv", ()))
    return any(
        command[i] == "-c" and "from multiprocessing." in command[i + 1]
        for i in range(len(command) - 1)
    )


def is_launcher() -> bool:
    """Whether this process starts ranks rather than being one."""
    return any(name in sys.modules for name in LAUNCHERS)


def may_claim(wanted: Claim) -> bool:
    """Whether the claim may stand before a group is initialised."""
    return not is_worker_process() and not is_launcher() and not owners(wanted.variable)


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def _environ(pid: int) -> Mapping[bytes, bytes]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        return dict(line.partition(b"=")[::2] for line in file.read().split(b"\0"))


def owners(variable: str, pid: int | None = None) -> list[int]:
    """Ancestors in this run that may be the rank themselves, nearest first.

    Those are Python processes whose environment holds ``variable``, and any that have a page.
    A shell wrapper around the rank is none; nor is a torchrun that got a RANK of its own, seen
    from its workers. Unreadable ancestors are skipped.
    """
    found: list[int] = []
    elastic = "TORCHELASTIC_RUN_ID" in os.environ
    run_id = os.environ.get("FABWATCH_RUN_ID", "").encode()
    run_dir = os.environ.get("FABWATCH_RUN_DIR", "").encode()
    live = os.path.join(os.environ.get("FABWATCH_RUN_DIR", ""), "live")
    try:
        pid = _parent(os.getpid() if pid is None else pid)
        for _ in range(64):
            if pid <= 1:
                break
            if os.path.exists(os.path.join(live, f"{pid}.page")):
                found.append(pid)
            else:
                try:
                    there = _environ(pid)
                    name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
                except OSError:
                    there, name = {}, ""
                same = (
                    there.get(b"FABWATCH_RUN_ID", b"") == run_id
                    and there.get(b"FABWATCH_RUN_DIR") == run_dir
                )
                above = elastic and b"TORCHELASTIC_RUN_ID" not in there
                if (
                    same
                    and not above
                    and variable.encode() in there
                    and name.startswith(("python", "pypy"))
                ):
                    found.append(pid)
            pid = _parent(pid)
    except (OSError, ValueError, IndexError):
        pass
    return found
