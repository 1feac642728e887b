"""Who is hit: by pid, by rank of a running job, or drawn by lot from a seed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from fabwatch.chaos.model import Link, Refused, Target, Victim
from fabwatch.watchdog import procfs, ranks


def ranks_of(root: int) -> dict[int, Victim]:
    """Rank -> its process, for all ranks at or below the process ``root``."""
    if procfs.stat(root) is None:
        raise Refused(f"pid {root}: no such process")
    found = ranks.Finder(root).scan()
    if not found:
        raise Refused(f"pid {root}: no rank of a job at or below it (RANK and WORLD_SIZE set?)")
    return {one.rank: Victim(one.pid, one.start_ticks, one.rank) for one in found}


def world_of(root: int) -> int:
    """Ranks of the whole job as its processes say; 0 when they do not."""
    return max((one.world_size for one in ranks.Finder(root).scan()), default=0)


def draw(candidates: Sequence[int], count: int, seed: int, purpose: str = "pick") -> list[int]:
    """``count`` of ``candidates``, the same for the same seed, whatever else is drawn.

    Rank 0 (it often holds the store) is drawn only when nobody else is there.
    """
    others = [c for c in candidates if c != 0] or list(candidates)

    def weight(candidate: int) -> bytes:
        return hashlib.sha256(f"{seed}:{purpose}:{candidate}".encode()).digest()

    if count > len(others):
        raise Refused(f"{count} ranks to be drawn from {len(others)}")
    return sorted(sorted(others, key=weight)[:count])


def _ours() -> set[int]:
    """Pids of this process and all above it: to break them breaks the undo."""
    found, pid = set(), os.getpid()
    while pid > 1 and pid not in found:
        found.add(pid)
        now = procfs.stat(pid)
        pid = now.ppid if now else 0
    return found


def select(
    *,
    pids: Sequence[int] = (),
    job: int | None = None,
    ranks: Sequence[int] = (),
    pick: int = 0,
    seed: int = 0,
    links: Sequence[str] = (),
    folder: str = "",
    control: str = "",
    world: int = 0,
) -> Target:
    """A target from what a user says; :class:`Refused` when it is not there or must not be hit.

    ``links``: ``IFACE`` or ``IFACE@/path/of/netns``. ``pick``: so many ranks by lot.
    """
    victims = [Victim.of(pid) for pid in pids]
    if job is not None:
        there = ranks_of(job)
        world = world or world_of(job)
        chosen = list(ranks) or (draw(sorted(there), pick, seed) if pick else [])
        for rank in chosen:
            if rank not in there:
                known = ", ".join(map(str, sorted(there)))
                raise Refused(f"rank {rank}: not on this host; there are {known}")
            victims.append(there[rank])
        ranks = chosen
    elif pick:
        if not world:
            raise Refused("--pick needs --job, or --world")
        ranks = draw(range(world), pick, seed)
    for victim in victims:
        if victim.pid == 1 or victim.pid in _ours():
            raise Refused(f"pid {victim.pid}: chaos itself depends on it")
    made = [Link(name, netns) for name, _, netns in (one.partition("@") for one in links)]
    return Target(
        tuple(victims), tuple(sorted(set(ranks))), tuple(made), folder, control, world
    )  # fmt: skip
