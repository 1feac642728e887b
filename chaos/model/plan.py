"""What would be done and undone: made without touching anything."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabwatch.chaos.model.target import Target
from fabwatch.chaos.model.tiers import Privilege, Tier
from fabwatch.chaos.model.values import Json, Values


@dataclass(frozen=True)
class Steps:
    """One mechanism's part of a plan.

    ``does`` and ``undoes`` are lines for people (commands where there are any). ``state`` is all
    that the undo needs, known before anything is touched: names chosen, former values read.
    ``found``: what was probed on the way.
    """

    does: tuple[str, ...]
    undoes: tuple[str, ...]
    state: Values
    found: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rejected:
    """A mechanism that was not chosen, and why."""

    mechanism: str
    why: str


@dataclass(frozen=True)
class Plan:
    """What :meth:`Fault.plan` says. ``limit_s``: it heals by then, whatever happens."""

    fault: str
    mechanism: str
    tier: Tier
    privilege: Privilege
    target: Target
    options: Values
    steps: Steps
    limit_s: float
    rejected: tuple[Rejected, ...] = ()
    exceeds: tuple[str, ...] = field(default=())

    def as_json(self) -> dict[str, Json]:
        """What `fabwatch chaos plan --json` prints."""
        return {
            "schema": "fabwatch.chaos.plan/1",
            "fault": self.fault,
            "mechanism": self.mechanism,
            "tier": self.tier.word,
            "privilege": self.privilege.word,
            "target": self.target.as_json(),
            "blast": {
                "ranks": list(self.target.all_ranks),
                "processes": len(self.target.victims),
                "links": len(self.target.links),
                "world": self.target.world,
            },
            "options": self.options.plain(),
            "limit_s": self.limit_s,
            "does": list(self.steps.does),
            "undoes": list(self.steps.undoes),
            "probed": list(self.steps.found),
            "rejected": [{"mechanism": r.mechanism, "why": r.why} for r in self.rejected],
            "exceeds": list(self.exceeds),
        }
