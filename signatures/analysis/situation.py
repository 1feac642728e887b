"""Puts together what the graph is built from: recorders first, then logs, RAS, stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fabwatch.signatures.analysis import p2p
from fabwatch.signatures.analysis.graph import SYNCHRONISING, Head, Situation
from fabwatch.signatures.analysis.logs import Logs, log_groups
from fabwatch.signatures.analysis.mismatch import call_site
from fabwatch.signatures.analysis.normalise import DEFAULT_GROUPS, GLOO_LIKE, Recorded
from fabwatch.signatures.analysis.ras import Ras
from fabwatch.signatures.analysis.stages import Stage
from fabwatch.watchdog.evidence.observations import Frame

STANDS_IN = frozenset({"collective", "device-sync"})


@dataclass(slots=True)
class Assembled:
    """The situation, and what it is known from."""

    situation: Situation
    basis: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    firm: dict[str, set[int]] = field(default_factory=dict)
    started: dict[tuple[str, int], dict[int, bool]] = field(default_factory=dict)
    stale: dict[int, tuple[str, str]] = field(default_factory=dict)
    ages_s: dict[int, float] = field(default_factory=dict)
    timeouts_ms: list[int] = field(default_factory=list)
    timed: bool = False


def assemble(
    recorded: Recorded,
    logs: Logs,
    ras: Ras,
    stages: Mapping[int, Stage],
    stage_cites: Mapping[int, str],
    frames: Mapping[int, Mapping[tuple[str, int], tuple[Frame, ...]]],
    ranks: Iterable[int],
) -> Assembled:
    """Make the situation from the best evidence there is."""
    everyone = sorted(ranks)
    if recorded.logs:
        out = _from_recorders(recorded, stages, frames)
        _stack_p2p(out, recorded, stages, stage_cites, everyone)
        _fill(out, recorded, logs, stages, everyone)
        return out
    if logs.marks:
        return _from_logs(logs, everyone, stages, recorded.world_size)
    if any(len(set(c.totals.values())) > 1 for c in ras.comms):
        return _from_ras(ras, everyone)
    return _from_stacks(stages, stage_cites, everyone)


def _from_recorders(
    recorded: Recorded,
    stages: Mapping[int, Stage],
    frames: Mapping[int, Mapping[tuple[str, int], tuple[Frame, ...]]],
) -> Assembled:
    out = Assembled(Situation(), "flight-recorder")
    for key, info in recorded.groups.items():
        out.situation.members[key] = info.members
        out.labels[key] = info.label
    entered: dict[str, dict[int, int]] = defaultdict(dict)
    finished: dict[str, dict[int, int]] = defaultdict(dict)
    for rank, log in recorded.logs.items():
        for key, marks in log.marks.items():
            entered[key][rank] = marks.entered
            finished[key][rank] = marks.finished
            if marks.firm:
                out.firm.setdefault(key, set()).add(rank)
        if not log.pending:
            continue
        key, op = log.pending[0]
        stage = stages.get(rank)
        overlay = frames.get(rank, {}).get((op.backend, op.record_id), ())
        where = call_site(op.frames or overlay)
        if not where and stage and stage.frame:
            where = str(stage.frame)
        peer, sending = (None, False)
        if op.is_p2p:
            peer, sending = p2p.peer_of(op, rank, recorded.groups[key])
        out.situation.heads[rank] = Head(
            rank,
            key,
            op.seq,
            op.op,
            op.record_id,
            peer,
            sending,
            op.is_p2p,
            False,
            where,
            log.cite(op),
        )
        if op.started is not None and not op.is_p2p:
            out.timed = True
            out.started.setdefault((key, op.seq), {})[rank] = op.started
        if op.timeout_ms:
            out.timeouts_ms.append(op.timeout_ms)
        taken = log.trace.source.taken
        if taken is not None and op.created_ns:
            out.ages_s[rank] = taken - op.created_ns / 1e9
    out.situation.entered = dict(entered)
    out.situation.finished = dict(finished)
    _find_stale(out, recorded)
    return out


def _find_stale(out: Assembled, recorded: Recorded) -> None:
    """A peer cannot have finished what a rank never entered: that rank's dump is older."""
    for key, marks in out.situation.finished.items():
        if not marks:
            continue
        lanes = recorded.by_seq.get(key)
        leader, most = max(marks.items(), key=lambda item: (item[1], -item[0]))
        op = None if lanes is None else lanes.of(most, leader)
        if most < 1 or op is None or op.op not in SYNCHRONISING:
            continue
        entered = out.situation.entered[key]
        for rank, seq in list(entered.items()):
            if seq < most and rank in out.firm.get(key, ()) and rank != leader:
                log = recorded.logs[rank]
                cite = recorded.logs[leader].cite(op)
                label = out.labels.get(key, key)
                text = (
                    f"rank {leader} finished {op.op} {most} of {label}, which needs rank {rank}, "
                    f"but rank {rank}'s dump ends at {seq}: it was taken earlier"
                )
                out.stale[rank] = (text, f"{cite} {log.cite()}")
                entered[rank] = most
                head = out.situation.heads.get(rank)
                if head is not None and head.group == key:
                    del out.situation.heads[rank]


def _stack_p2p(
    out: Assembled,
    recorded: Recorded,
    stages: Mapping[int, Stage],
    stage_cites: Mapping[int, str],
    everyone: list[int],
) -> None:
    """On Gloo only stacks show sends and receives; a blocking one comes before all else."""
    for rank, stage in stages.items():
        head = out.situation.heads.get(rank)
        log = recorded.logs.get(rank)
        if head is not None and (head.is_p2p or (log and log.trace.backend not in GLOO_LIKE)):
            continue
        found = p2p.from_stack(rank, stage, stage_cites.get(rank, ""), everyone)
        if found is not None:
            out.situation.heads[rank] = found


def _fill(
    out: Assembled,
    recorded: Recorded,
    logs: Logs,
    stages: Mapping[int, Stage],
    everyone: list[int],
) -> None:
    """Say of ranks without a recorder what stacks and logs tell, else call them absent."""
    absent: set[int] = set()
    inside: set[int] = set()
    by_group = log_groups(logs)
    defaults = [k for k, g in recorded.groups.items() if g.name in DEFAULT_GROUPS]
    known = set(everyone) | {r for m in out.situation.members.values() for r in m}
    for rank in known - set(recorded.logs):
        stage = stages.get(rank)
        told = False
        for name, marks in by_group.items():
            if rank not in marks:
                continue
            for key in [k for k, g in recorded.groups.items() if name in (g.name, g.desc)] or (
                defaults if name in DEFAULT_GROUPS else []
            ):
                out.situation.entered.setdefault(key, {})[rank] = marks[rank].enqueued
                out.situation.finished.setdefault(key, {})[rank] = marks[rank].completed
                told = True
        if told:
            continue
        if stage is None or not stage.primary:
            absent.add(rank)
        elif stage.primary in STANDS_IN:
            inside.add(rank)
        elif stage.primary == "p2p":
            continue
    out.situation.absent = frozenset(absent)
    out.situation.inside = frozenset(inside)


def _from_logs(
    logs: Logs, everyone: list[int], stages: Mapping[int, Stage], world: int | None
) -> Assembled:
    """The same graph from watchdog lines: ranks in the log's own words (ranks of the group)."""
    out = Assembled(Situation(), "job-log")
    silent = set(everyone)
    for name, marks in log_groups(logs).items():
        key = f"log:{name}"
        out.labels[key] = "default_pg" if name in DEFAULT_GROUPS else name
        gaps = set() if world or name not in DEFAULT_GROUPS else _gaps(marks)
        whole = name in DEFAULT_GROUPS and world
        members = set(range(world or 0)) if whole else set(marks) | gaps
        out.situation.members[key] = tuple(sorted(members))
        silent |= gaps
        for rank, one in marks.items():
            silent.discard(rank)
            out.situation.entered.setdefault(key, {})[rank] = one.enqueued
            out.firm.setdefault(key, set()).add(rank)
            done = one.completed if one.completed >= 0 else one.at - 1
            out.situation.finished.setdefault(key, {})[rank] = done
            if one.enqueued > done >= 0 or (one.at > 0 and one.enqueued >= one.at):
                seq = one.at if one.at > 0 else done + 1
                stage = stages.get(rank)
                frame = str(stage.frame) if stage and stage.frame else ""
                known = out.situation.heads.get(rank)
                head = Head(rank, key, seq, one.op, seq, frame=frame, cite=one.cite)
                if known is None or head.order < known.order:
                    out.situation.heads[rank] = head
    _name_ops(out)
    out.situation.absent = frozenset(r for r in silent if r not in stages or not stages[r].primary)
    out.situation.inside = frozenset(
        r for r in silent - out.situation.absent if stages[r].primary in STANDS_IN
    )
    return out


_SPEAK = 3
"""So many times more ranks must speak than are silent before a gap between them means a rank."""


def _gaps(marks: Iterable[int]) -> set[int]:
    """Ranks between the lowest and the highest that spoke which said nothing themselves.

    Where most ranks report, one that does not is missing; where a few do, it is the log.
    """
    spoke = set(marks)
    low, high = min(spoke), max(spoke)
    if (high - low + 1 - len(spoke)) * _SPEAK > len(spoke):
        return set()
    return set(range(low, high + 1)) - spoke


def _name_ops(out: Assembled) -> None:
    """Lines without an operation borrow it from a rank that waits in the same one."""
    names = {(h.group, h.seq): h.op for h in out.situation.heads.values() if h.op}
    for rank, head in list(out.situation.heads.items()):
        if not head.op and (name := names.get((head.group, head.seq))):
            out.situation.heads[rank] = Head(
                rank, head.group, head.seq, name, head.order, frame=head.frame, cite=head.cite
            )


def _from_ras(ras: Ras, everyone: list[int]) -> Assembled:
    """Launch counts as sequence numbers: who has launched more waits for who has launched less."""
    out = Assembled(Situation(), "ras")
    for comm in ras.comms:
        if len(set(comm.totals.values())) < 2:
            continue
        key = f"ras:{comm.hash}"
        out.labels[key] = f"communicator {comm.hash}"
        low = min(comm.totals.values())
        out.situation.members[key] = tuple(sorted(set(comm.totals) | set(ras.missing)))
        out.situation.entered[key] = dict(comm.totals)
        out.situation.finished[key] = {r: low for r in comm.totals}
        out.firm[key] = set(comm.totals)
        for rank, total in comm.totals.items():
            if total > low:
                cite = comm.cites[0] if comm.cites else ""
                head = Head(rank, key, low + 1, comm.op, low + 1, cite=cite)
                out.situation.heads.setdefault(rank, head)
    out.situation.absent = frozenset(set(everyone) & set(ras.missing))
    return out


def _from_stacks(
    stages: Mapping[int, Stage], stage_cites: Mapping[int, str], everyone: list[int]
) -> Assembled:
    """Stacks alone: who stands in a collective waits for who does not."""
    out = Assembled(Situation(), "python-stack")
    key = "stack:"
    out.labels[key] = ""
    named = {r for r, s in stages.items() if s.primary == "collective"}
    out.situation.members[key] = tuple(sorted(stages))
    for rank, stage in stages.items():
        if stage.primary == "p2p":
            found = p2p.from_stack(rank, stage, stage_cites.get(rank, ""), everyone)
            if found is not None:
                out.situation.heads[rank] = found
        elif stage.primary in STANDS_IN and named:
            out.situation.entered.setdefault(key, {})[rank] = 1
            frame = str(stage.frame) if stage.frame else ""
            out.situation.heads[rank] = Head(
                rank, key, 1, stage.op, 1, stack=True, frame=frame, cite=stage_cites.get(rank, "")
            )
    known = set(stages)
    out.situation.absent = frozenset(set(everyone) - known)
    return out
