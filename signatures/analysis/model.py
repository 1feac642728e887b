"""What the analysis hands to the matcher: roots, the wait-for graph, facts, open questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.facts import Facts

HOST_STALL = "host-stall"
STOPPED = "process-stopped"
DEAD = "process-dead"
LEFT = "left-the-loop"
ABSENT = "absent"
TYPE_MISMATCH = "type-mismatch"
SIZE_MISMATCH = "size-mismatch"
DTYPE_MISMATCH = "dtype-mismatch"
ROOT_MISMATCH = "root-mismatch"
CALL_SITES = "call-sites-differ"
DEADLOCK = "deadlock"
P2P_CYCLE = "p2p-cycle"
P2P_UNMATCHED = "p2p-unmatched"
COMPLETION_LAG = "completion-lag"
GPU_STALLED = "gpu-stalled"
IN_COLLECTIVE = "in-collective"
UNEVEN = "uneven-participation"
EXTERNAL = "external-dependency"

MISMATCHES = (TYPE_MISMATCH, SIZE_MISMATCH, DTYPE_MISMATCH, ROOT_MISMATCH)


@dataclass(frozen=True, slots=True)
class Root:
    """A root of the wait-for graph.

    ``ranks`` are the culprits as HANG_ANALYSIS' table counts them; () when evidence does not
    separate one, and then ``suspects`` holds those who are left. ``others`` wait on it. ``seq`` is
    -1 when unknown. ``sure`` is False when a gap in the evidence, not the evidence, points there.
    ``first_use``: a group of a deadlock had completed nothing before, so its order was never right.
    ``unseen``: members whose dumps would separate the culprits.
    """

    ranks: tuple[int, ...]
    kind: str
    group: str = ""
    op: str = ""
    seq: int = -1
    frame: str = ""
    cites: tuple[str, ...] = ()
    others: tuple[int, ...] = ()
    stage: str = ""
    sure: bool = True
    suspects: tuple[int, ...] = ()
    why: str = ""
    first_use: bool = False
    unseen: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HangGraph:
    """Roots (most waited-for first), who waits, and the edges between ranks.

    ``edges`` maps a waiting rank to the ranks that it waits for; big groups share one tuple.
    """

    roots: tuple[Root, ...] = ()
    waiting: tuple[int, ...] = ()
    edges: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something that contradicts the reading, with citations."""

    text: str
    cites: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The text, its places in brackets."""
        return f"{self.text} [{', '.join(self.cites)}]" if self.cites else self.text


@dataclass(frozen=True, slots=True)
class Ask:
    """What to fetch next, why it decides, and the command."""

    what: str
    why: str = ""
    command: str = ""

    def __str__(self) -> str:
        """One line."""
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text} ({self.command})" if self.command else text


@dataclass(frozen=True, slots=True)
class Analysis:
    """One diagnosis' facts and hang graph. ``hosts`` maps a rank to its host, where known."""

    facts: Facts
    hang: HangGraph
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    contradictions: tuple[Doubt, ...] = ()
    asks: tuple[Ask, ...] = ()
    group_timeout_s: float | None = None
