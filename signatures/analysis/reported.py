"""States what a job's own lines say only together: slower steps, unfinished set-up, odd calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.signatures.analysis.shaped import HARMLESS
from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import LogEvent

_SLOWER = 3.0
_APART = 20
_BAR = "shape:bar.running"
_STEPS = frozenset({"shape:progress.reported", "progress.rate", "progress.last"})
_COMPLETED = "shape:job.completed"
_ALARMS = frozenset({"shape:error.unexplained", "shape:wait.reported"})
_GETS_ON = 3
_LONG_S = 300.0
_NEARLY = 0.8
"""A bar that ran for so much of the time-out was at work until it came."""
_OWN_WORK = re.compile(
    r"tokeni|map|preproc|prepar|filter|group|pack|generat|evaluat|validat|saving|cach|download"
    r"|convert|index|build|scan",
    re.I,
)


def say(events: Iterable[LogEvent], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """Add facts that need several lines of one or more logs."""
    events = list(events)
    _slowed(events, facts)
    _resumed(events, facts)
    _data_bound(events, facts)
    _set_up(events, rank_of_pid, facts)
    _prefixes(events, rank_of_pid, facts)
    _working(events, facts)
    _gone(events, facts)
    _uneven(events, facts)
    _responded(events, facts)
    _calls(events, rank_of_pid, facts)
    _proxy(events, rank_of_pid, facts)


# ---------------------------------------------------------------------- steps


def _label(text: str) -> str:
    """What stands before the numbers of a progress line: one bar or loop has one label."""
    return re.split(r"\d", text, maxsplit=1)[0].strip()[:40]


def _slowed(events: list[LogEvent], facts: Facts) -> None:
    """A loop whose rate fell to a third or less, and which went on after that."""
    rates: dict[tuple[str, str], list[tuple[float, int | None, LogEvent]]] = defaultdict(list)
    last: dict[str, int] = {}
    for event in events:
        step = int(event.get("step")) if event.get("step").isdigit() else None
        if event.kind == "progress.rate":
            key = (event.source.path, _label(event.text))
            rates[key].append((float(event.get("rate") or 0), step, event))
        elif event.kind == "progress.last" and step is not None:
            last[event.source.path] = max(step, last.get(event.source.path, 0))
    for (path, _), seen in rates.items():
        fast, start, first = max(seen, key=lambda one: one[0])
        slow, now, low = seen[-1]
        if not slow or fast / slow < _SLOWER or low.line <= first.line:
            continue
        began = next(at for rate, at, one in seen if one.line > first.line and rate * 2 < fast)
        if start is None or began is None or now is None:
            continue
        if began - start < _APART or last.get(path, now) < now:
            continue
        facts.add(
            fact(
                "progress.slowed",
                ranks=[] if low.rank is None else [low.rank],
                cites=[first.cite, low.cite],
                factor=round(fast / slow, 1),
                since_step=began,
            )
        )


def gets_on(events: Iterable[LogEvent]) -> set[str]:
    """Paths of logs that end in ordinary progress: steps or a good end after all errors."""
    steps: dict[str, set[int]] = defaultdict(set)
    bad: dict[str, int] = {}
    for event in events:
        path = event.source.path
        if event.kind in _STEPS:
            steps[path].add(event.line)
        elif event.kind == _COMPLETED:
            steps[path].update(range(event.line, event.line + _GETS_ON))
        elif event.kind in _ALARMS:
            bad[path] = max(event.line, bad.get(path, 0))
    return {
        path
        for path, lines in steps.items()
        if len({line for line in lines if line > bad.get(path, -1)}) >= _GETS_ON
    }


def _resumed(events: list[LogEvent], facts: Facts) -> None:
    """Logs in which the job went on after lines that sound alarming, the harmless ones too.

    A log that only ends in progress says nothing: that of a job that hangs ends so as well. An
    alarm that was followed by progress was not what stops a job.
    """
    calm = gets_on(events)
    harmless = [e for e in events if e.kind in _ALARMS or e.kind == HARMLESS]
    for path in sorted(calm):
        mine = [event for event in harmless if event.source.path == path]
        if not mine:
            continue
        last = max(mine, key=lambda event: event.line)
        after = [e for e in events if e.source.path == path and e.line > last.line]
        steps = [e for e in after if e.kind in _STEPS or e.kind == _COMPLETED]
        if len({e.line for e in steps}) >= _GETS_ON:
            cites = [last.cite, steps[-1].cite]
            facts.add(fact("progress.resumed", cites=cites, alarms=len(mine)))


_TIMED = "shape:step.timed"
_TIMINGS = 5
"""Fewer steps say little; the first one of a log fills the loader's queue and is left out."""


def _data_bound(events: list[LogEvent], facts: Facts) -> None:
    """What share of their steps ranks waited for data, where the trainer prints both times."""
    timed: dict[tuple[str, int | None], list[LogEvent]] = defaultdict(list)
    for event in events:
        if event.kind == _TIMED:
            timed[event.source.path, event.rank].append(event)
    for (_, rank), mine in timed.items():
        steps = mine[1:]
        if len(steps) < _TIMINGS:
            continue
        took = sum(float(e.get("time") or e.get("took") or 0) for e in steps)
        waited = sum(float(e.get("data") or e.get("waited") or 0) for e in steps)
        if took > 0:
            facts.add(
                fact("step.data-bound", ranks=[] if rank is None else [rank],
                     cites=[steps[0].cite, steps[-1].cite], steps=len(steps),
                     percent=round(min(100 * waited / took, 100)))
            )  # fmt: skip


# ---------------------------------------------------------------------- set-up


@dataclass(slots=True)
class _SetUp:
    started: dict[str, LogEvent] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    built: LogEvent | None = None
    completes: int = 0
    destroyed: LogEvent | None = None


def _set_up(events: list[LogEvent], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """Communicators that were begun and never completed, by process."""
    seen: dict[tuple[str, str], _SetUp] = defaultdict(_SetUp)
    for event in events:
        key = (event.host or "", event.get("pid"))
        if event.kind == "nccl-log.init-start":
            seen[key].started.setdefault(event.get("comm"), event)
        elif event.kind == "nccl-log.init-complete":
            seen[key].finished.add(event.get("comm"))
        elif event.kind == "shape:init.finished":
            seen[key].completes += 1
        elif event.kind == "shape:init.reached-rings":
            seen[key].built = event
        elif event.kind == "shape:communicator.destroyed":
            seen[key].destroyed = event
    ended = [one.destroyed for one in seen.values() if one.destroyed is not None]
    if ended and len(ended) == len(seen):  # every process that is known took its own down
        facts.add(fact("job.completed", cites=[event.cite for event in ended[:4]], said_by="nccl"))
    if not seen:
        facts.unknowable.add("init.incomplete")
    for (host, pid), one in seen.items():
        begun = [event for comm, event in one.started.items() if comm not in one.finished]
        if not begun and not one.completes and not one.finished and one.built is not None:
            begun = [one.built]
        if begun:
            rank = rank_of_pid.get(int(pid)) if pid.isdigit() else None
            facts.add(
                fact(
                    "init.incomplete",
                    ranks=[] if rank is None else [rank],
                    hosts=[host] if host else [],
                    cites=[event.cite for event in begun[:4]],
                    begun=len(one.started) or 1,
                    completed=len(one.finished) or one.completes,
                )
            )


_DEVICES = re.compile(r"\[\d{1,3}\](?P<name>[A-Za-z]\w{1,30}):\d")


def _prefixes(events: list[LogEvent], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """Devices that a filter of NCCL_IB_HCA took in because a name without = is a prefix."""
    asked: dict[tuple[str, str], LogEvent] = {}
    for event in events:
        key = (event.host or "", event.get("pid"))
        if "NCCL_IB_HCA" in (event.get("key"), event.get("name")) and event.get("value"):
            asked[key] = event
        elif event.kind == "nccl-log.net-devices" and key in asked:
            value = asked[key].get("value").rstrip(".")
            if value[:1] in ("^", "="):
                continue
            names = [one.split(":")[0] for one in re.split(r"[,;]", value) if one]
            more = sorted(
                name
                for match in _DEVICES.finditer(event.get("devices"))
                if (name := match["name"]) not in names
                and any(
                    re.match(re.escape(one) + r"\d", name) for one in names if one[-1].isdigit()
                )
            )
            pid = event.get("pid")
            rank = rank_of_pid.get(int(pid), event.rank) if pid.isdigit() else event.rank
            if more:
                facts.add(
                    fact("ib-hca.prefix-matched", ranks=[] if rank is None else [rank],
                         hosts=[event.host] if event.host else [],
                         cites=[asked[key].cite, event.cite], value=value,
                         taken=", ".join(more[:8]))
                )  # fmt: skip


# ---------------------------------------------------------------------- rank 0's own work


def _working(events: list[LogEvent], facts: Facts) -> None:
    """Others wait for rank 0, and a bar of long work was last seen unfinished."""
    timed_out = {r for f in facts.of("timeout.reported") for r in f.where.ranks}
    waited = bool(facts.of("timeout.reported")) or any(
        event.kind == "nccl.unique-id" and event.get("why") for event in events
    )
    if not waited or 0 in timed_out:
        return
    limits = [v for f in facts.of("timeout.reported") if isinstance(v := f.get("timeout_ms"), int)]
    limit_s = min(limits) / 1000 if limits else _LONG_S / _NEARLY
    last: dict[tuple[str, str], LogEvent] = {}
    for event in events:
        if event.kind == _BAR:
            last[event.source.path, _label(event.get("what"))] = event
    for event in last.values():
        percent = event.get("percent")
        if _seconds(event.get("elapsed")) < limit_s * _NEARLY:
            continue  # it may have stopped long before the time-out
        if percent.isdigit() and int(percent) < 100 and _OWN_WORK.search(event.get("what")):
            facts.add(
                fact("rank0.working", ranks=[0], cites=[event.cite], what=event.get("what"),
                     how="unfinished-bar", percent=int(percent))
            )  # fmt: skip
    sections = [e for e in events if e.kind == "shape:rank0.first-section"]
    if sections:
        facts.add(
            fact("rank0.working", ranks=[0], cites=[e.cite for e in sections[:4]],
                 what="a section that the main process enters first", how="first-section")
        )  # fmt: skip


def _seconds(text: str) -> float:
    """Seconds of ``29:58`` or ``1:02:03``; 0 for anything else."""
    parts = [int(part) for part in text.split(":") if part.isdigit()]
    return float(sum(part * 60**n for n, part in enumerate(reversed(parts))))


def _gone(events: list[LogEvent], facts: Facts) -> None:
    """Ranks that said that they were done while others timed out."""
    timed_out = {r for f in facts.of("timeout.reported") for r in f.where.ranks}
    done: dict[int, str] = {}
    for event in events:
        if event.kind == "shape:rank.finished" and event.get("rank").isdigit():
            done.setdefault(int(event.get("rank")), event.cite)
    left = {r: cite for r, cite in done.items() if r not in timed_out}
    if timed_out and left and not set(done) & timed_out:
        facts.add(fact("process.left", ranks=left, cites=left.values(), said_by="job-log"))


def _uneven(events: list[LogEvent], facts: Facts) -> None:
    """One label with different lengths, from several processes, in a job that timed out."""
    if not facts.of("timeout.reported"):
        return
    told: dict[str, dict[int, LogEvent]] = defaultdict(dict)
    for event in events:
        if event.kind == "shape:inputs.length-reported" and event.get("length").isdigit():
            told[event.get("label")].setdefault(int(event.get("length")), event)
    for label, lengths in told.items():
        if len(lengths) > 1:
            low, high = min(lengths), max(lengths)
            rank = lengths[low].rank
            facts.add(
                fact("inputs.uneven", ranks=[] if rank is None else [rank], label=label,
                     low=low, high=high, cites=[lengths[low].cite, lengths[high].cite])
            )  # fmt: skip


_ANSWERS = frozenset({"dump.written", "dump.seen", "dump.first", "dump.received"})


def _responded(events: list[LogEvent], facts: Facts) -> None:
    """Ranks whose own threads answered a request for a dump: they are neither stopped nor gone."""
    cites: dict[int, str] = {}
    for event in events:
        if event.kind in _ANSWERS and event.rank is not None:
            cites.setdefault(event.rank, event.cite)
    for rank, cite in sorted(cites.items()):
        facts.add(fact("process.responded", ranks=[rank], cites=[cite], how="dump"))


# ---------------------------------------------------------------------- NCCL's calls


def _calls(events: list[LogEvent], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """Sends that wait for each other in a ring: nobody has called a receive (NCCL's COLL lines)."""
    last: dict[tuple[str, int], tuple[str, int, LogEvent]] = {}
    received: set[tuple[int, int]] = set()
    ranks: dict[tuple[str, str], int] = {}
    for event in events:
        if event.kind in ("nccl-log.init-complete", "nccl-log.init-start"):
            text = event.get("comm_rank")
            if text.isdigit():
                ranks[event.get("pid"), event.get("comm")] = int(text)
        elif event.kind == "nccl-log.call":
            mine = ranks.get((event.get("pid"), event.get("comm")))
            peer = event.get("root")
            if mine is None or not peer.isdigit():
                continue
            if event.get("op") == "Recv":
                received.add((int(peer), mine))
            last[event.get("nranks"), mine] = (event.get("op"), int(peer), event)
    for (size, rank), (op, _, _) in sorted(last.items()):
        if op != "Send":
            continue
        ring, at = [rank], last[size, rank][1]
        while at != rank and at not in ring and last.get((size, at), ("",))[0] == "Send":
            ring.append(at)
            at = last[size, at][1]
        pairs = list(zip(ring, [*ring[1:], rank], strict=True))
        if at == rank and len(ring) > 1 and rank == min(ring) and not received & set(pairs):
            own = {r: rank_of_pid.get(_pid(last[size, r][2]), r) for r in ring}
            facts.add(
                fact(
                    "p2p.deadlocked",
                    ranks=own.values(),
                    cites=[last[size, r][2].cite for r in ring],
                    why="each sends first and none has called a receive",
                )
            )
            return


def _pid(event: LogEvent) -> int:
    text = event.get("pid")
    return int(text) if text.isdigit() else -1


def _proxy(events: list[LogEvent], rank_of_pid: Mapping[int, int], facts: Facts) -> None:
    """NCCL's proxy still drives operations, by its own dump."""
    for event in events:
        if event.kind != "nccl-log.proxy-active":
            continue
        rank = event.rank if event.rank is not None else rank_of_pid.get(_pid(event))
        facts.add(
            fact(
                "proxy.waiting-on-wire",
                ranks=[] if rank is None else [rank],
                cites=[event.cite],
                ops=int(event.get("ops") or 0),
                states=event.get("states"),
            )
        )


_ASPECTS = ("type", "size", "dtype")


def tell_apart(events: Iterable[LogEvent], facts: Facts) -> None:
    """Who names one aspect of a mismatch has compared the others: those agree."""
    events = list(events)
    if not any(e.kind == "detail.mismatch" and e.get("fb") for e in events) and not any(
        e.get("said_by") == "torchfrtrace" for e in events
    ):
        return
    for aspect in _ASPECTS:
        name = f"collective.{aspect}-mismatched"
        if not facts.of(name):
            facts.denied.add(name)
