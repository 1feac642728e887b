"""What a conclusion is drawn from: facts, graded matches, the wait-for graph, the watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.signatures.matching import Match
from fabwatch.signatures.model import Library
from fabwatch.signatures.verdict import HangRoot
from fabwatch.watchdog.evidence.facts import EVERYONE, Facts
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.observations import Stall

AT_ONCE = frozenset(
    {
        "process.stopped",
        "process.exited",
        "process.killed",
        "process.left",
        "process.absent",
        "process.oom-killed",
        "process.segfaulted",
        "process.aborted",
        "process.terminated",
        "gil.held",
        "exception.raised",
        "dataloader-worker.killed",
        "dataloader-worker.failed",
        "cuda.out-of-memory",
        "cuda.sticky-error",
        "memory.host-exhausted",
        "collective.type-mismatched",
        "collective.size-mismatched",
        "collective.dtype-mismatched",
        "collective.root-mismatched",
        "collective.deadlocked",
        "p2p.deadlocked",
        "p2p.unmatched",
        "monitored-barrier.failed",
        "timeout.reported",
        "gpu.xid",
        "link.down",
    }
)
"""Positive evidence of a failure: no further waiting makes it surer that something is wrong."""

WRONG = AT_ONCE | frozenset(
    {
        "exception.consequent",
        "error.unexplained",
        "shm.exhausted",
        "disk.full",
        "loss.not-finite",
        "store.unreachable",
        "store.lost",
        "store.port-taken",
        "rendezvous.incomplete",
        "new-group.incomplete",
        "name.unresolvable",
        "interface.none-matched",
        "gloo.mesh-failed",
        "gpu.duplicated",
        "network.error-reported",
        "storage.stalled",
        "collective.mismatch-reported",
        "wait.reported",
        "init.incomplete",
    }
)
"""Facts that no healthy job shows."""

_PENDING = ("collective.lagging", "collective.incomplete", "wait.root", "wait.waiting")

_TELLING = frozenset({"flight-recorder", "pg-status", "exit", "exception", "watch"})
"""Sources that can tell a healthy job from a broken one by showing nothing wrong."""

_BY_SIGNS = frozenset({"python-stack", "job-log", "nccl-log", "ras"})
"""Sources in which a standstill looks like health: they need a sign that the job gets on."""

_SIGNS = ("progress.advancing", "progress.resumed", "job.completed")
"""Two looks that differ, progress after an alarm, the job's own last word. Not mere progress: the
log of a job that hangs ends in it too."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that outcome, fabric and culprits are decided from.

    ``recorded`` are ranks of which a recorder was read that keeps every operation, send and
    receive included (NCCL's does, Gloo's does not). ``blind`` are those of which no dump is
    whole: what is pending stands at the end, which a cut takes first.
    """

    library: Library
    facts: Facts
    matches: tuple[Match, ...] = ()
    roots: tuple[HangRoot, ...] = ()
    waiting: tuple[int, ...] = ()
    stall: Stall | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    recorded: frozenset[int] = frozenset()
    blind: frozenset[int] = frozenset()

    def yes(self, *names: str) -> bool:
        """Whether any of these facts holds anywhere."""
        return any(self.facts.known(name) is Known.YES for name in names)

    def any_yes(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that hold, sorted."""
        held = {fact.name for fact in self.facts}
        return sorted(held & set(names))

    @property
    def standing(self) -> list[Match]:
        """Likely and confirmed matches that name a cause, best first."""
        return [m for m in self.matches if m.grade.stands and m.signature.names_cause]

    @property
    def looked(self) -> bool:
        """Whether what was read can tell a healthy job from a broken one.

        A log, a stack or one answer of RAS without a sign that the job gets on may be of a job
        that stands still.
        """
        read = set(self.facts.looked)
        seen: set[int] = set()
        for source in read & _TELLING:
            ranks = self.facts.looked[source]
            seen |= ranks - self.blind if source == "flight-recorder" else ranks
        if seen and (EVERYONE in seen or self.facts.ranks <= seen):
            return True  # of each rank that is known of, not only of some
        return bool(read & _BY_SIGNS) and self.yes(*_SIGNS)

    @property
    def pending(self) -> bool:
        """Whether somebody waits."""
        if self.roots or self.waiting or self.yes(*_PENDING):
            return True
        return self.stall is not None and self.stall.trigger in ("stall", "timeout-near")

    @property
    def advancing(self) -> bool:
        """Whether two looks at the whole job showed progress, and none showed a standstill."""
        return self.yes("progress.advancing") and not self.yes("progress.frozen")

    @property
    def exceeded(self) -> bool:
        """Whether the wait is longer than a wait may be.

        Evidence that was saved by hand has no watch: then a person is looking at a failure.
        """
        if self.yes("wait.exceeded", "timeout.reported", "monitored-barrier.failed"):
            return True
        return self.stall is None and not self.advancing
