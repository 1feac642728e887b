"""Builders of observations for the analysis tests: a small world of ranks on Gloo or NCCL."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fabwatch.watchdog.evidence.observations import (
    Exit,
    Frame,
    Group,
    GroupStatus,
    JobShape,
    LogEvent,
    Op,
    ProcessState,
    ProgressPage,
    PythonError,
    RankStacks,
    RankTrace,
    Source,
    Stall,
    ThreadStack,
)
from fabwatch.watchdog.evidence.reading import Reading

C10D = "torch/distributed/distributed_c10d.py"


@dataclass
class World:
    """Collects what a capture would have found; ``read()`` gives the Reading."""

    size: int = 4
    backend: str = "gloo"
    known_size: bool = True
    traces: dict[tuple[int, int], RankTrace] = field(default_factory=dict)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    other: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, kind: str, *what: Any) -> None:
        self.other.setdefault(kind, []).extend(what)

    def trace(
        self,
        rank: int,
        calls: list[Any],
        *,
        snapshot: int = 1,
        taken: float | None = None,
        wrapped: bool = False,
        status: tuple[tuple[str, GroupStatus], ...] = (),
    ) -> None:
        """``calls``: (op, finished) or dicts of Op fields, in order; seq counts per group."""
        seqs: dict[str, int] = {}
        ops = []
        for index, call in enumerate(calls):
            given = dict(call) if isinstance(call, dict) else {"op": call[0], "finished": call[1]}
            group = given.setdefault("group", "0")
            if given.get("is_p2p"):
                seq = seqs.get(group, 0)
            else:
                seq = seqs[group] = given.get("seq", seqs.get(group, 0) + 1)
            given["seq"] = seq
            if given["op"] != "barrier":
                given.setdefault("sizes_in", ((8,),))
                given.setdefault("sizes_out", ((8,),))
                given.setdefault("dtypes_in", ("Float",))
            given.setdefault("timeout_ms", 1_800_000)
            given.setdefault("retired", given.get("finished", False))
            ops.append(Op(index=index, record_id=index, backend=self.backend, **given))
        suffix = "" if snapshot == 1 else f"snapshot-{snapshot}/"
        path = f"ranks/{rank}/{suffix}fr_trace_rank_{rank}.json"
        source = Source(path, "flight-recorder", rank, None, snapshot, taken)
        groups = {"0": ()} if self.backend == "gloo" else {"0": tuple(range(self.size))}
        if self.backend != "gloo":
            groups |= self.groups
        made = tuple(
            Group(name, "default_pg" if name == "0" else "undefined", members)
            for name, members in groups.items()
            if not members or rank in members
        )
        self.traces[(rank, snapshot)] = RankTrace(
            source,
            rank,
            "2.10",
            "",
            self.backend if ops else "",
            made,
            status,
            tuple((g.name, g.name) for g in made),
            tuple(ops),
            wrapped,
        )

    def page(
        self,
        rank: int,
        *,
        snapshot: int = 1,
        stale: bool = False,
        mark: int = 3,
        tick: int = 9,
        age_s: float = 30.0,
    ) -> None:
        source = Source(
            f"ranks/{rank}/pg_status_rank_{rank}.json#{snapshot}", "pg-status", rank, None, snapshot
        )
        named = [Group("0", "default_pg", tuple(range(self.size)))]
        named += [Group(n, "undefined", m) for n, m in self.groups.items() if rank in m]
        self.add(
            "pages",
            ProgressPage(
                source,
                rank,
                1000 + rank,
                self.size,
                rank,
                tick,
                age_s if stale else 0.4,
                stale,
                "2.13",
                tuple(named),
                (("gloo:0", GroupStatus(mark, -1, mark - 1)),),
            ),
        )

    def stack(
        self, rank: int, *frames: Any, snapshot: int = 1, active: bool = False, gil: bool = False
    ) -> None:
        """Frames innermost first: (function, file, line[, locals])."""
        made = tuple(
            Frame(f[0], f[1], f[2], tuple((f[3] if len(f) > 3 else {}).items())) for f in frames
        )
        source = Source(f"ranks/{rank}/pyspy_rank_{rank}.txt", "python-stack", rank, None, snapshot)
        thread = ThreadStack("MainThread", 1000 + rank, active, gil, made, 4)
        self.add(
            "stacks", RankStacks(source, rank, 1000 + rank, False, "python train.py", (thread,))
        )

    def in_collective(self, rank: int, op: str = "all_reduce", **more: Any) -> None:
        self.stack(
            rank,
            (op, C10D, 3252),
            ("average", "/job/train.py", 83),
            ("main", "/job/train.py", 120),
            **more,
        )

    def in_loader(self, rank: int, **more: Any) -> None:
        self.stack(
            rank,
            ("fetch", "/job/faults.py", 61),
            ("__getitem__", "/job/train.py", 41),
            ("fetch", "torch/utils/data/_utils/fetch.py", 54),
            ("__next__", "torch/utils/data/dataloader.py", 630),
            ("main", "/job/train.py", 118),
            **more,
        )

    def in_p2p(self, rank: int, op: str, peer: int, **more: Any) -> None:
        key = "dst" if op == "send" else "src"
        self.stack(rank, (op, C10D, 2799, {key: str(peer)}), ("stage", "/job/pipe.py", 12), **more)

    def process(self, rank: int, state: str = "S", *, snapshot: int = 1, **more: Any) -> None:
        source = Source(
            f"ranks/{rank}/proc_rank_{rank}.txt#{snapshot}", "process", rank, None, snapshot
        )
        self.add("processes", ProcessState(source, rank, 1000 + rank, state, **more))

    def exit(
        self,
        rank: int,
        code: int | None = None,
        signal: int | None = None,
        *,
        order: int | None = None,
        ours: bool = False,
        when: float | None = None,
        **more: Any,
    ) -> None:
        source = Source("exits.jsonl", "exit")
        self.add(
            "exits",
            Exit(
                source,
                rank,
                1000 + rank,
                code,
                signal,
                when,
                order,
                ours,
                cite=f"exits.jsonl:{order or rank}",
                **more,
            ),
        )

    def error(
        self, rank: int | None, type_: str, text: str, when: float | None = None, line: int = 7
    ) -> None:
        source = Source("job.log", "job-log")
        frames = (Frame("main", "/job/train.py", 120), Frame("step", "/job/train.py", line))
        self.add("errors", PythonError(source, rank, type_, text, frames, when, f"job.log:{line}"))

    def event(
        self, kind: str, text: str = "", rank: int | None = None, line: int = 1, **fields: Any
    ) -> None:
        source = Source("job.log", "job-log")
        self.add(
            "events",
            LogEvent(
                source,
                kind,
                line,
                text,
                rank,
                None,
                None,
                tuple((k, str(v)) for k, v in fields.items()),
            ),
        )

    def stall(self, trigger: str = "stall", still: tuple[int, ...] = (), **more: Any) -> None:
        self.add(
            "stalls", Stall(Source("incident.json", "watch"), trigger, still_ranks=still, **more)
        )

    def read(self) -> Reading:
        if self.known_size:
            self.add("shapes", JobShape(Source("incident.json", "watch"), self.size))
        return Reading(
            traces=tuple(self.traces.values()),
            **{kind: tuple(what) for kind, what in self.other.items()},
        )

    def waiting(self, *ranks: int, steps: int = 3, op: str = "all_reduce") -> None:
        """These ranks have finished ``steps`` all_reduces and stand in the next operation."""
        for rank in ranks:
            self.trace(rank, [*[("all_reduce", True)] * steps, (op, False)])
            self.in_collective(rank, op)

    def behind(self, rank: int, steps: int = 3) -> None:
        """This rank has finished ``steps`` all_reduces and called nothing more."""
        self.trace(rank, [("all_reduce", True)] * steps)


@pytest.fixture(scope="session")
def world() -> type[World]:
    """The builder class; each test makes its own."""
    return World


@pytest.fixture(scope="session")
def edit() -> Any:
    """dataclasses.replace, for tests that bend an observation."""
    return replace
