"""The protocol: a fault is a kind of failure, a mechanism is one way to bring it about.

To add a fault write chaos/faults/<layer>_<name>.py with ``FAULT = Fault(...)``; it is found by
listing the folder. Every member passes tests/chaos/test_fault_conformance.py.

Rules for a mechanism, on which the guardian and the journal rely:

- ``missing`` and ``plan`` touch nothing. ``missing`` probes the host (a tool, a kernel feature, a
  permission) by looking, not by assuming.
- All that ``revert`` needs stands in the state (JSON): it runs in ANOTHER process, perhaps days
  later, with nothing but that. Names (cgroups, tables, folders) are chosen in ``plan``; former
  values are read there and saved. What can be known only while injecting (the pid of a helper) is
  handed to ``note`` BEFORE the helper may act: see chaos/helpers.py.
- The runner adds to the state before ``inject``: ``id`` (unique, short), ``limit_s`` and
  ``until_ns`` (CLOCK_MONOTONIC). A mechanism with a clock of its own (a kernel timeout, a
  helper) takes its deadline from there.
- ``revert`` is idempotent, works after a half-done ``inject``, and when the target is gone. It
  puts back former values, never a guessed normal. It never kills or touches what is not ours or
  named in the state; a pid counts only with its start time.
- ``took_hold`` MEASURES the effect on the victim, not that the command ran. ``reverted`` looks at
  the same thing again. Both may take a second or two, have a deadline, and answer unknown when
  nobody can look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fabwatch.chaos.model.plan import Plan, Rejected, Steps
from fabwatch.chaos.model.seen import Seen
from fabwatch.chaos.model.target import Limits, Target
from fabwatch.chaos.model.tiers import Privilege, Tier
from fabwatch.chaos.model.values import Json, Refused, Values

Note = Callable[[Mapping[str, Json]], None]
"""Adds to the journalled state; on disk when it returns."""

LONGEST_S = 3600.0
"""No fault may be asked to last longer."""


@dataclass(frozen=True)
class Param:
    """One option of a fault. ``default`` gives its type; None: it must be given, as a text."""

    name: str
    default: Json
    says: str

    def read(self, text: str) -> Json:
        """The value of ``text``; :class:`Refused` when it is not one."""
        try:
            if isinstance(self.default, bool):
                return {"true": True, "yes": True, "false": False, "no": False}[text.lower()]
            if isinstance(self.default, int):
                return int(text, 0)
            if isinstance(self.default, float):
                return float(text)
        except (KeyError, ValueError):
            kind = type(self.default).__name__
            raise Refused(f"{self.name}={text}: not a value of kind {kind}") from None
        return text


class Mechanism(Protocol):
    """One way to bring a fault about. See the module's rules."""

    name: str
    says: str
    tier: Tier
    privilege: Privilege
    needs: str
    """What the target must have: victims, ranks (with a control folder), links, folder, or
    nothing ("")."""

    outlives_boot: bool = False
    """Whether the state is in force after a reboot (sysfs of a NIC's firmware, files)."""

    def missing(self) -> str:
        """Why this host does not allow it; "" when it does."""
        ...

    def plan(self, target: Target, options: Values) -> Steps:
        """What would be done; raises :class:`Refused`. Touches nothing."""
        ...

    def inject(self, state: Values, note: Note) -> None:
        """Do it. Raises OSError or :class:`Refused`; the runner then reverts."""
        ...

    def took_hold(self, state: Values) -> Seen:
        """Measure that the victim feels it."""
        ...

    def revert(self, state: Values) -> None:
        """Undo it; idempotent."""
        ...

    def reverted(self, state: Values) -> Seen:
        """Measure that it is gone; yes also when the victim is gone."""
        ...


@dataclass(frozen=True)
class Fault:
    """A kind of failure. ``id``: layer.name. ``mechanisms``: any order; safest is tried first.

    ``expects``: ids of signatures of which one should come first in a diagnosis.
    """

    id: str
    says: str
    mechanisms: tuple[Mechanism, ...]
    params: tuple[Param, ...] = ()
    expects: tuple[str, ...] = ()

    @property
    def layer(self) -> str:
        """What stands before the dot."""
        return self.id.partition(".")[0]

    def ordered(self) -> list[Mechanism]:
        """By tier, then by privilege, then as written."""
        return sorted(self.mechanisms, key=lambda m: (m.tier, m.privilege))

    def mechanism(self, name: str) -> Mechanism:
        """The one of that name; :class:`Refused` when there is none."""
        for one in self.mechanisms:
            if one.name == name:
                return one
        names = ", ".join(m.name for m in self.ordered())
        raise Refused(f"{self.id}: no mechanism {name!r}; there are {names}")

    def options(self, given: Mapping[str, Json]) -> Values:
        """``given`` over the defaults; texts are read as their parameter's kind."""
        known = {param.name: param for param in self.params}
        for name in given:
            if name not in known:
                names = ", ".join(known) or "none"
                raise Refused(f"{self.id}: no option {name!r}; there are: {names}")
        values: dict[str, Json] = {p.name: p.default for p in self.params if p.default is not None}
        for name, value in given.items():
            values[name] = known[name].read(value) if isinstance(value, str) else value
        for param in self.params:
            if param.name not in values:
                raise Refused(f"{self.id}: the option {param.name} must be given ({param.says})")
        return Values(values)

    def plan(
        self,
        target: Target,
        given: Mapping[str, Json] | None = None,
        *,
        limit_s: float = 60.0,
        mechanism: str = "",
        limits: Limits | None = None,
    ) -> Plan:
        """Choose the safest mechanism that host, target and limits allow; touch nothing.

        Raises :class:`Refused`, naming the reason of every mechanism, when none will do.
        """
        if not 0 < limit_s <= LONGEST_S:
            raise Refused(f"a time limit of {limit_s:g} s: more than 0 and at most {LONGEST_S:g}")
        limits = limits or Limits()
        options = self.options(given or {})
        rejected: list[Rejected] = []
        for one in [self.mechanism(mechanism)] if mechanism else self.ordered():
            why = _unfit(one, target, limits)
            steps = None
            if not why:
                try:
                    steps = one.plan(target, options)
                except Refused as err:
                    why = str(err)
            if steps is None:
                rejected.append(Rejected(one.name, why))
                continue
            return Plan(
                self.id, one.name, one.tier, one.privilege, target, options, steps, limit_s,
                tuple(rejected), tuple(limits.exceeded(target)),
            )  # fmt: skip
        whys = "; ".join(f"{r.mechanism}: {r.why}" for r in rejected)
        raise Refused(f"{self.id}: no mechanism will do here: {whys}")


def _unfit(mechanism: Mechanism, target: Target, limits: Limits) -> str:
    """Why it cannot be used at all; "" when it can."""
    if mechanism.tier not in limits.tiers:
        if mechanism.tier == Tier.IRREVERSIBLE:
            return "cannot be undone (--allow-irreversible)"
        return f"the tier {mechanism.tier.word} is not allowed"
    have = {
        "victims": bool(target.victims),
        "ranks": bool(target.all_ranks and target.control),
        "links": bool(target.links),
        "folder": bool(target.folder),
        "": True,
    }
    if not have[mechanism.needs]:
        return {
            "victims": "needs processes (--pid, or --rank of a running job)",
            "ranks": "needs --rank and a job that was launched for it (--control)",
            "links": "needs a link (--link)",
            "folder": "needs a directory (--folder)",
        }[mechanism.needs]
    return mechanism.missing()
