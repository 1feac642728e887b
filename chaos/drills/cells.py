"""The cells of the matrix: which fault, who is to blame, which answers are right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One kind of trial. ``accept``: signature ids of which any first one is right.

    ``blame`` gives the culprit set for a culprit rank; () means that nobody may be blamed.
    ``options`` go to the workload. ``exit_code`` is what the bare launcher ends with.
    """

    name: str
    accept: tuple[str, ...] = ()
    symptom: tuple[str, ...] = ("hang",)
    both: bool = False  # the partner (culprit + 1) is to blame as well
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # freezer, memory: cgroups that the drill must be able to make
    exit_code: int = 1
    seconds: float = 0.0  # controls: how long the job runs
    undecidable: bool = False  # right is also: nobody is named, and the verdict cannot tell

    @property
    def control(self) -> bool:
        """Whether nothing is broken."""
        return not self.accept

    def blame(self, culprit: int, world: int) -> tuple[int, ...]:
        """The ranks that must be named, and no others."""
        if self.control:
            return ()
        partner = ((culprit + 1) % world,) if self.both else ()
        return tuple(sorted((culprit, *partner)))


FAULTS: tuple[Cell, ...] = (
    Cell("sigstop", ("process-stopped-sigstop",)),
    Cell("loader-sleep", ("dataloader-stall", "rank-host-stalled")),
    Cell("gil", ("gil-held-watchdog-stuck",)),
    Cell("sigkill", ("rank-killed",), ("crash",)),
    Cell("exception", ("rank-exception-peers-wait",), ("crash",)),
    Cell("exit-0", ("rank-left-the-loop", "uneven-data-end"), ("crash", "hang")),
    Cell("op-mismatch", ("mismatched-collective-type",)),
    Cell("size-mismatch", ("collective-size-mismatch",), ("crash", "hang")),
    Cell("size-smaller", ("collective-size-mismatch",), ("crash", "hang")),
    Cell("crossed-groups", ("cross-communicator-order-deadlock",), both=True),
    Cell("recv-unmatched", ("p2p-order-deadlock",)),
    Cell("recv-cycle", ("p2p-order-deadlock",), both=True),
    Cell(
        "conditional",
        ("conditional-collective-rank0", "mismatched-collective-type"),
    ),
    Cell("slow-checkpoint", ("checkpoint-save-barrier-timeout", "slow-rank0-work")),
    Cell("frozen", ("process-stopped-sigstop",), needs=("freezer",)),
    Cell("worker-killed", ("dataloader-worker-killed",), ("crash",), options=("--workers", "1")),
    Cell("oom", ("oom-kill-cgroup",), ("crash",), needs=("memory",)),
)

ON_GPUS: tuple[Cell, ...] = (
    Cell(
        "gpu-spin",
        ("gpu-kernel-stalled", "gpu-hang-spinning", "stuck-in-collective-undecided"),
        undecidable=True,
    ),
)

CONTROLS: tuple[Cell, ...] = (
    Cell("steady", exit_code=0, seconds=60),
    Cell("ddp", exit_code=0, seconds=60, options=("--parallel", "ddp")),
    Cell("irregular", exit_code=0, seconds=100, options=("--rhythm", "irregular")),
    Cell("evaluation", exit_code=0, seconds=80, options=("--rhythm", "evaluation")),
    Cell("compile", exit_code=0, seconds=60, options=("--rhythm", "compile")),
    Cell("compute-only", exit_code=0, seconds=110, options=("--rhythm", "compute-only")),
    Cell("pipeline", exit_code=0, seconds=60, options=("--rhythm", "pipeline")),
)

CELLS: dict[str, Cell] = {cell.name: cell for cell in FAULTS + ON_GPUS + CONTROLS}
"""Cell name -> cell."""
