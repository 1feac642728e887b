"""What a fault hits: processes, links, folders, a job to be launched; and the blast radius."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabwatch.chaos.model.values import Json, Refused, Values
from fabwatch.watchdog import procfs


@dataclass(frozen=True)
class Victim:
    """One process. ``start_ticks`` (since boot) tells it from a later one with the same pid."""

    pid: int
    start_ticks: int
    rank: int | None = None

    def alive(self) -> bool:
        """Whether it is still this process, and no zombie."""
        now = procfs.stat(self.pid)
        return now is not None and now.start_ticks == self.start_ticks and now.state not in "ZX"

    def as_json(self) -> dict[str, Json]:
        """For the journal."""
        return {"pid": self.pid, "start_ticks": self.start_ticks, "rank": self.rank}

    @classmethod
    def of(cls, pid: int, rank: int | None = None) -> Victim:
        """The living process with that pid; :class:`Refused` when there is none."""
        now = procfs.stat(pid)
        if now is None or now.state in "ZX":
            raise Refused(f"pid {pid}: no such process")
        return cls(pid, now.start_ticks, rank)

    @classmethod
    def from_json(cls, values: Values) -> Victim:
        """The inverse of :meth:`as_json`."""
        rank = values.get("rank")
        start = values.whole("start_ticks")
        return cls(values.whole("pid"), start, rank if isinstance(rank, int) else None)


@dataclass(frozen=True)
class Link:
    """One network interface. ``netns``: path of its namespace, "" for the caller's own."""

    interface: str
    netns: str = ""

    def as_json(self) -> dict[str, Json]:
        """For the journal."""
        return {"interface": self.interface, "netns": self.netns}

    @classmethod
    def from_json(cls, values: Values) -> Link:
        """The inverse of :meth:`as_json`."""
        return cls(values.text("interface"), values.text("netns"))


@dataclass(frozen=True)
class Target:
    """What is hit. ``world``: ranks of the whole job (0: not known).

    ``control``: folder by which faults inside ranks are switched (see chaos/inside), "" when the
    job was not launched for that. ``ranks``: those inside which something is to happen; the
    ranks of ``victims`` count too. ``folder``: a directory for storage faults.
    """

    victims: tuple[Victim, ...] = ()
    ranks: tuple[int, ...] = ()
    links: tuple[Link, ...] = ()
    folder: str = ""
    control: str = ""
    world: int = 0

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Every rank that is hit, sorted."""
        more = {v.rank for v in self.victims if v.rank is not None}
        return tuple(sorted({*self.ranks, *more}))

    def as_json(self) -> dict[str, Json]:
        """For the plan and the journal."""
        return {
            "victims": [v.as_json() for v in self.victims],
            "ranks": list(self.ranks),
            "links": [one.as_json() for one in self.links],
            "folder": self.folder,
            "control": self.control,
            "world": self.world,
        }


@dataclass(frozen=True)
class Limits:
    """The largest blast radius that is allowed: counts, and share of the job's ranks."""

    ranks: int = 1
    share: float = 0.5
    links: int = 1
    tiers: frozenset[int] = field(default_factory=lambda: frozenset(range(1, 7)))

    def exceeded(self, target: Target) -> list[str]:
        """Every limit that ``target`` goes beyond; [] when it is within all of them."""
        found = []
        hit = max(len(target.all_ranks), len(target.victims))
        if hit > self.ranks:
            found.append(f"{hit} ranks or processes are hit, {self.ranks} allowed (--max-ranks)")
        if target.world and hit / target.world > self.share:
            found.append(
                f"{hit} of {target.world} ranks are hit, a share of {self.share:g} is allowed "
                "(--max-share)"
            )
        if len(target.links) > self.links:
            found.append(f"{len(target.links)} links are hit, {self.links} allowed (--max-links)")
        return found
