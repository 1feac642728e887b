"""What a fault is: targets, mechanisms, plans, what was seen, and how it is undone."""

from __future__ import annotations

from fabwatch.chaos.model.fault import Fault, Mechanism, Note, Param
from fabwatch.chaos.model.plan import Plan, Rejected, Steps
from fabwatch.chaos.model.seen import Seen, no, unknown, yes
from fabwatch.chaos.model.target import Limits, Link, Target, Victim
from fabwatch.chaos.model.tiers import Privilege, Tier
from fabwatch.chaos.model.values import Json, Refused, Values

__all__ = [
    "Fault",
    "Json",
    "Limits",
    "Link",
    "Mechanism",
    "Note",
    "Param",
    "Plan",
    "Privilege",
    "Refused",
    "Rejected",
    "Seen",
    "Steps",
    "Target",
    "Tier",
    "Values",
    "Victim",
    "no",
    "unknown",
    "yes",
]
