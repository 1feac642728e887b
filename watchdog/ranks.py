"""Find the ranks of a job from outside: by process tree, environment and probe pages."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.watchdog import procfs


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's process. Identity is ``pid`` with ``start_ticks`` (ticks since boot).

    ``local_rank`` and ``world_size`` are -1 where nobody says. ``attempt`` counts restarts of the
    workers by the launcher from 0. ``how``: page, or the variable that named the rank.
    """

    rank: int
    local_rank: int
    world_size: int
    pid: int
    start_ticks: int
    attempt: int = 0
    how: str = "RANK"
    parent: int = 0


@dataclass(frozen=True, slots=True)
class PageClaim:
    """What a probe page says of its process. ``rank`` None: not initialised yet."""

    pid: int
    rank: int | None
    world_size: int | None = None
    local_rank: int | None = None
    attempt: int | None = None


FAMILIES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_LOCAL_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
"""Variables for (rank, local rank, world size), most specific first."""

ATTEMPT = "TORCHELASTIC_RESTART_COUNT"
RUN_ID = "FABWATCH_RUN_ID"
_NAMES = frozenset(n.encode() for f in FAMILIES for n in f) | {ATTEMPT.encode(), RUN_ID.encode()}

SHELLS = frozenset(
    (
        "sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "busybox", "env", "nice", "nohup",
        "timeout", "time", "stdbuf", "setsid", "numactl", "taskset", "chrt", "ionice", "tini",
        "dumb-init", "catatonit", "sudo", "su", "runuser", "nsys", "ncu", "strace", "ltrace",
        "gdb", "perf", "uv", "conda",
    )
)  # fmt: skip
"""Programs that start a rank but are never one."""

LAUNCHERS = frozenset(
    (
        "srun", "slurmstepd", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "prte",
        "prted", "orted", "hydra_pmi_proxy", "pmi_proxy",
    )
)  # fmt: skip
"""Programs that start ranks and end the others when one fails."""

_LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "torch/distributed/run.py",
    "accelerate", "accelerate.commands.launch", "deepspeed", "deepspeed.launcher.launch",
    "torchx", "horovodrun", "ft_launcher", "composer",
)  # fmt: skip
_YOUNG_S = 5.0


@dataclass(slots=True)
class _Claim:
    """What an environment says: which rank its process, or an ancestor of it, is."""

    family: str
    rank: int
    local_rank: int
    world_size: int
    attempt: int

    @property
    def key(self) -> tuple[str, int, int, int, int]:
        return (self.family, self.rank, self.local_rank, self.world_size, self.attempt)


@dataclass(slots=True)
class _Node:
    """One process of the job's tree, and what was found out about it."""

    pid: int
    start_ticks: int
    ppid: int
    state: str
    comm: str
    seen: float
    program: str = ""
    launches: bool = False
    claim: _Claim | None = None
    kids: tuple[int, ...] = ()

    @property
    def is_python(self) -> bool:
        return self.program.startswith(("python", "pypy")) and not self.launches

    @property
    def is_shell(self) -> bool:
        return self.launches or self.program in SHELLS


def _number(text: str | None) -> int | None:
    """A rank or size in a variable; None for what is not a small non-negative number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def claim_of(environ: Mapping[str, str]) -> tuple[str, int, int, int, int] | None:
    """(variable, rank, local rank, world size, attempt) that an environment claims, or None."""
    attempt = _number(environ.get(ATTEMPT)) or 0
    for name, local, size in FAMILIES:
        rank = _number(environ.get(name))
        if rank is None or rank >= 1 << 24:
            continue
        here, world = _number(environ.get(local)), _number(environ.get(size))
        if name == "RANK" and world is None and here is None:
            continue  # too common a word to be believed alone
        return (name, rank, -1 if here is None else here, -1 if world is None else world, attempt)
    return None


def launches(argv: Iterable[str]) -> bool:
    """Whether a command line is that of a known launcher written in Python."""
    words = list(argv)[:4]
    for word in words:
        tail = word.rpartition("/")[2]
        if word in _LAUNCHERS or tail in _LAUNCHERS or word.endswith("torch/distributed/run.py"):
            return True
    return False


@dataclass
class Finder:
    """The processes of one job, kept up to date by :meth:`scan`.

    ``root``: pid that the stub started. ``run_id``: value of FABWATCH_RUN_ID, by which processes
    that left the tree are found. ``skip``: our own processes.
    """

    root: int | None
    run_id: str = ""
    skip: set[int] = field(default_factory=set)
    nodes: dict[int, _Node] = field(default_factory=dict)
    _ranks: dict[int, Rank] = field(default_factory=dict)
    _strays: set[int] = field(default_factory=set)
    _known: set[int] = field(default_factory=set)
    _helpers: set[tuple[int, int]] = field(default_factory=set)

    # -------------------------------------------------------------- looking

    def scan(
        self, pages: Mapping[int, PageClaim] | None = None, *, deep: bool = True, full: bool = False
    ) -> tuple[Rank, ...]:
        """Look again; return the ranks that live, by rank.

        ``deep`` looks below ranks too (helpers that are the real rank); ``full`` also looks
        through all processes of this user for those that were re-parented.
        """
        pages = pages or {}
        if full and self.run_id:
            self._find_strays()
        old, self.nodes = self.nodes, {}
        todo = [pid for pid in (self.root, *sorted(self._strays), *sorted(pages)) if pid]
        now = time.monotonic()
        while todo:
            pid = todo.pop(0)
            if pid in self.nodes or pid in self.skip:
                continue
            node = self._look(pid, old.get(pid), now)
            if node is None:
                self._strays.discard(pid)
                continue
            self.nodes[pid] = node
            if not deep and pid in self._ranks and pid in old:
                node.kids = old[pid].kids
                for kid in node.kids:
                    if kid in old:
                        self.nodes.setdefault(kid, old[kid])
                continue
            kids = procfs.children(pid)
            if kids is None:
                kids = self._kids_without_children_file(pid)
            node.kids = tuple(kids)
            todo.extend(kids)
            if node.ppid and node.ppid not in self.nodes and pid != self.root:
                self._chain(node, old, now)
        self._ranks = {r.pid: r for r in self._choose(pages)}
        self._note_helpers()
        return tuple(sorted(self._ranks.values(), key=lambda r: r.rank))

    def _look(self, pid: int, known: _Node | None, now: float) -> _Node | None:
        """One process: from memory if nothing about it can have changed."""
        stat = procfs.stat(pid)
        if stat is None:
            return None
        if known is not None and known.start_ticks == stat.start_ticks:
            known.ppid, known.state = stat.ppid, stat.state
            settled = known.comm == stat.comm and now - known.seen > _YOUNG_S
            if settled or stat.state in "ZX":
                return known
            seen = known.seen
        elif stat.state in "ZX":
            return None
        else:
            seen = now
        found = claim_of(procfs.environ(pid, _NAMES))
        program = procfs.program(pid) or stat.comm
        return _Node(
            pid, stat.start_ticks, stat.ppid, stat.state, stat.comm, seen, program,
            program in LAUNCHERS or launches(procfs.command(pid)),
            _Claim(*found) if found else None,
        )  # fmt: skip

    def _chain(self, node: _Node, old: Mapping[int, _Node], now: float) -> None:
        """Take in the parents of a process that a page named, up to a process that is not ours."""
        at = node
        for _ in range(16):
            if at.ppid <= 1 or at.ppid in self.nodes or at.ppid in self.skip:
                return
            up = self._look(at.ppid, old.get(at.ppid), now)
            if up is None or up.claim is None or at.claim is None:
                return
            self.nodes[up.pid] = up
            at = up

    def _kids_without_children_file(self, pid: int) -> list[int]:
        """Children of a process on kernels without /proc/<pid>/task/<tid>/children."""
        return [
            p for p in procfs.own_processes() if (s := procfs.stat(p)) is not None and s.ppid == pid
        ]

    def _find_strays(self) -> None:
        """Processes of this run by FABWATCH_RUN_ID, wherever they hang in the tree."""
        wanted = self.run_id
        here = set(procfs.own_processes())
        for pid in here - self._known - self.skip:
            if procfs.environ(pid, frozenset({RUN_ID.encode()})).get(RUN_ID) == wanted:
                self._strays.add(pid)
        self._known = here

    def _note_helpers(self) -> None:
        """Remember what runs below a Python rank under its claim: it inherits no rank from it."""
        here = {(node.pid, node.start_ticks) for node in self.nodes.values()}
        self._helpers &= here
        for node in self.nodes.values():
            for up in self._above(node):
                if node.claim is None or up.claim is None or up.claim.key != node.claim.key:
                    break
                if up.pid in self._ranks and up.is_python:
                    self._helpers.add((node.pid, node.start_ticks))
                    break

    # -------------------------------------------------------------- choosing

    def _choose(self, pages: Mapping[int, PageClaim]) -> list[Rank]:
        """One process for each rank: pages win, else the topmost Python of an environment."""
        by_page = {
            pid: claim
            for pid, claim in pages.items()
            if pid in self.nodes and claim.rank is not None
        }
        chosen: dict[int, Rank] = {}
        for pid, page in by_page.items():
            node = self.nodes[pid]
            env = node.claim
            if self._page_above(node, by_page):
                continue  # a child that inherited its parent's claim
            chosen[pid] = Rank(
                page.rank if page.rank is not None else -1,
                _first(page.local_rank, env.local_rank if env else None),
                _first(page.world_size, env.world_size if env else None),
                pid, node.start_ticks,
                max(_first(page.attempt, env.attempt if env else None), 0), "page", node.ppid,
            )  # fmt: skip
        for node in self._by_environment(set(pages)):
            claim = node.claim
            if claim is None or node.pid in chosen or self._family_has(node, set(chosen)):
                continue
            chosen[node.pid] = Rank(
                claim.rank, claim.local_rank, claim.world_size, node.pid, node.start_ticks,
                claim.attempt, claim.family, node.ppid,
            )  # fmt: skip
        return self._one_each(chosen.values())

    def _page_above(self, node: _Node, by_page: Mapping[int, PageClaim]) -> bool:
        """Whether an ancestor has a page with the same rank."""
        mine = by_page[node.pid]
        return any(
            up.pid in by_page and by_page[up.pid].rank == mine.rank for up in self._above(node)
        )

    def _above(self, node: _Node) -> list[_Node]:
        """Ancestors inside the tree, nearest first."""
        found: list[_Node] = []
        seen = {node.pid}
        at: _Node | None = self.nodes.get(node.ppid)
        while at is not None and at.pid not in seen:
            seen.add(at.pid)
            found.append(at)
            at = self.nodes.get(at.ppid)
        return found

    def _by_environment(self, paged: set[int]) -> list[_Node]:
        """The process that is the rank, of each subtree with one claim in its environment."""
        members: dict[int, list[tuple[int, _Node]]] = {}
        for node in self.nodes.values():
            helper = (node.pid, node.start_ticks) in self._helpers
            if node.claim is None or (helper and node.pid not in paged):
                continue
            head, depth = node, 0
            for up in self._above(node):
                if up.claim is None or up.claim.key != node.claim.key:
                    break
                head, depth = up, depth + 1
            members.setdefault(head.pid, []).append((depth, node))
        picked = []
        for group in members.values():
            group.sort(key=lambda item: (item[0], item[1].start_ticks, item[1].pid))
            best = next((n for _, n in group if n.pid in paged), None)
            best = best or next((n for _, n in group if n.is_python), None)
            best = best or next((n for _, n in group if not n.is_shell), None)
            if best is not None:
                picked.append(best)
        above = {up.pid for node in picked for up in self._above(node)}
        # A process that has picked ones of other claims below it launches them: no rank itself.
        return [n for n in picked if n.pid not in above or n.pid in paged]

    def _family_has(self, node: _Node, chosen: set[int]) -> bool:
        """Whether a chosen process is an ancestor or a descendant of this one."""
        if any(up.pid in chosen for up in self._above(node)):
            return True
        return any(
            node.pid in {up.pid for up in self._above(self.nodes[pid])}
            for pid in chosen
            if pid in self.nodes
        )

    def _one_each(self, ranks: Iterable[Rank]) -> list[Rank]:
        """Newest attempt of each rank; of equals the one with a page, else the oldest process."""
        best: dict[int, Rank] = {}
        for one in ranks:
            other = best.get(one.rank)
            if other is None or _order(one) > _order(other):
                best[one.rank] = one
        return list(best.values())

    # -------------------------------------------------------------- what follows from the tree

    def launcher(self, ranks: Iterable[Rank]) -> int | None:
        """The process that would end the other ranks when one fails; None when there is none.

        It is the nearest process above all ranks that is no shell and no rank.
        """
        wanted = [self.nodes[r.pid] for r in ranks if r.pid in self.nodes]
        if not wanted:
            return None
        mine = {node.pid for node in wanted}
        common: list[_Node] = self._above(wanted[0])
        for node in wanted[1:]:
            above = {up.pid for up in self._above(node)}
            common = [up for up in common if up.pid in above]
        for up in common:
            if up.pid not in mine and (not up.is_shell or up.launches):
                return up.pid
        return None

    def living(self) -> list[int]:
        """Processes of the job that still run (zombies do not)."""
        found = []
        for pid, node in self.nodes.items():
            stat = procfs.stat(pid)
            if stat and stat.start_ticks == node.start_ticks and stat.state not in "ZX":
                found.append(pid)
        return found


def _first(*values: int | None) -> int:
    """The first that is not None, else -1."""
    return next((v for v in values if v is not None), -1)


def _order(rank: Rank) -> tuple[int, bool, int, int]:
    """Which of two claims to one rank to believe: the greater."""
    return (rank.attempt, rank.how == "page", -rank.start_ticks, -rank.pid)
