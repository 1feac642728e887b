"""Compares ranks: from one reading to facts, the hang graph and what to ask next."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fabwatch.signatures.analysis import (
    asks,
    devices,
    exits,
    findings,
    graph,
    link_events,
    links,
    logs,
    measured,
    normalise,
    processes,
    ras,
    recent,
    reported,
    shaped,
    snapshots,
    stages,
    stall,
)
from fabwatch.signatures.analysis.judge import judge
from fabwatch.signatures.analysis.mismatch import family
from fabwatch.signatures.analysis.model import SIZE_MISMATCH, Analysis, Doubt, HangGraph
from fabwatch.signatures.analysis.roots import Scene
from fabwatch.signatures.analysis.situation import assemble
from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import Op, ProcessState, RankStacks, Stall
from fabwatch.watchdog.evidence.op_columns import each
from fabwatch.watchdog.evidence.reading import Reading, versions_of
from fabwatch.watchdog.evidence.vocabulary import SOURCES


def analyse(reading: Reading) -> Analysis:
    """Facts across ranks and the wait-for graph of one reading (one incident, or saved files)."""
    reading = recent.only(reading)
    facts = Facts()
    pids = _pids(reading)
    hosts = _hosts(reading)
    by_rank = _stacks(_numbered(reading.stacks), pids)
    standing, stage_cites = _stages(by_rank)
    world = normalise.world_size(reading.shapes, reading.pages, reading.traces)
    recorded = normalise.record(normalise.choose(reading.traces), reading.pages, world)
    ranks = _ranks(reading, by_rank, recorded, world)
    facts.ranks = set(ranks)
    _look(reading, facts, pids)

    ending = _ending(reading)
    procs = processes.look(
        reading.processes, reading.pages, by_rank, reading.events, pids, facts, ending
    )
    states: dict[int, list[ProcessState]] = defaultdict(list)
    for state in reading.processes:
        rank = state.rank if state.rank is not None else pids.get(state.pid)
        if rank is not None:
            states[rank].append(state)
    motion = snapshots.compare(
        reading.traces, reading.pages, by_rank, states, reading.stalls, facts
    )
    log = logs.read(reading.events, facts)
    report = ras.read(reading.ras, world, pids, facts)
    motion.advanced |= report.advanced
    motion.frozen |= report.frozen - motion.advanced
    motion.stood = motion.stood or bool(log.timeouts)
    devices.look(reading.gpus, pids, facts)

    frames = normalise.call_frames(reading.traces)
    made = assemble(recorded, log, report, standing, stage_cites, frames, ranks)
    waits = bool(made.situation.heads) or bool(log.timeouts)
    since = min(
        (
            one.detected
            for one in reading.stalls
            if one.detected and one.trigger in ("stall", "timeout-near") and not one.resolved
        ),
        default=None,
    )
    deaths = exits.judge(
        reading.exits,
        reading.errors,
        reading.events,
        pids,
        waits,
        bool(log.timeouts),
        since,
        facts,
        frozenset(r for r, seen in states.items() if seen and all(_lives(one) for one in seen)),
    )
    calm = reported.gets_on(reading.events)
    lines = link_events.settle(reading.events, facts)
    shaped.say(lines, reading.errors, pids, versions_of(reading), calm, facts)
    if since is not None and not deaths.leaving and any(_ended_later(s) for s in reading.stalls):
        # People and schedulers end jobs that hang: that order explains nothing of the hang.
        facts.facts = [f for f in facts.facts if f.name != "process.terminated"]
    reported.say(reading.events, pids, facts)
    links.look(reading.links, reading.events, pids, hosts, waits, facts)
    measured.look(reading.measured, facts)
    old = ras.say_old_differences(report, _recent(recorded), facts)
    motion.advanced |= set(old)
    motion.advanced |= set(made.stale)
    _halt(made.situation, procs, deaths)
    rank_cites = _rank_cites(recorded, stage_cites, states)
    splits, split_cites = findings.mismatches(recorded, log, standing, stage_cites, made, facts)
    reported.tell_apart(reading.events, facts)
    unfinished = {key: found[0] for key, found in splits.items() if found[0].unfinished}
    made.situation.broken = frozenset(unfinished)
    scene = Scene(
        made.situation,
        standing,
        stage_cites,
        made.labels,
        deaths,
        procs.stopped,
        unfinished,
        split_cites,
        made.firm,
        made.started,
        rank_cites,
        hosts,
    )
    built = graph.build(made.situation)
    shifts = findings.shifts(recorded, frames, made, facts)
    found = judge(built, scene, made, motion, log, shifts)
    if not facts.of("collective.size-mismatched"):
        for root in found.roots:
            if root.kind == SIZE_MISMATCH and root.ranks:  # Gloo's own word, sizes unrecorded
                facts.add(
                    fact("collective.size-mismatched", ranks=root.ranks, cites=root.cites,
                         group=root.group, seq=root.seq, op=root.op, tie=len(root.ranks) > 1,
                         said_by="gloo")
                )  # fmt: skip
                if logs.other_sizes(log) and not facts.of("collective.type-mismatched"):
                    facts.denied.add("collective.type-mismatched")
    doubts = [Doubt(text, cites) for text, cites in procs.doubts]
    doubts += [Doubt(text, tuple(cite.split(" "))) for text, cite in made.stale.values()]
    doubts += found.doubts
    waiting = tuple(
        sorted(set(made.situation.heads) - {r for root in found.roots for r in root.ranks})
    )
    timeout_s = min(made.timeouts_ms) / 1000 if made.timeouts_ms else log.timeout_s
    stall.look(reading.stalls, timeout_s, facts)
    findings.say_stages(standing, stage_cites, procs.sleeping, facts)
    findings.say_graph(built, scene, found.roots, waiting, made, facts)
    findings.say_timeouts(found.roots, motion, log, timeout_s, facts)
    findings.say_call_sites(by_rank, standing, stage_cites, motion, facts)
    findings.say_same_stack(by_rank, standing, ranks, made.situation.heads, facts)
    findings.unknowables(recorded, frames, made, motion, facts)
    roots = found.roots or findings.external(standing, ranks, procs, facts)
    wanted = asks.next_steps(roots, scene, made, motion, ranks, hosts, pids, reading.traces)
    edges = _edges(built)
    return Analysis(
        facts=facts,
        hang=HangGraph(tuple(roots), waiting, edges),
        ranks=tuple(ranks),
        world_size=world,
        hosts=hosts,
        contradictions=tuple(doubts),
        asks=tuple(wanted),
        group_timeout_s=timeout_s,
    )


def _pids(reading: Reading) -> dict[int, int]:
    """Pid -> rank. On several hosts the same pid may mean two ranks; then it means none."""
    out: dict[int, set[int]] = defaultdict(set)
    for page in reading.pages:
        out[page.pid].add(page.rank)
    for state in reading.processes:
        if state.rank is not None:
            out[state.pid].add(state.rank)
    for shape in reading.shapes:
        for rank, _, pid in shape.ranks:
            out[pid].add(rank)
    for one in reading.exits:
        if one.pid:
            out[one.pid].add(one.rank)
    if not out:
        for stack in reading.stacks:
            if stack.rank is not None and stack.pid:
                out[stack.pid].add(stack.rank)
    return {pid: next(iter(ranks)) for pid, ranks in out.items() if len(ranks) == 1 and pid}


def _hosts(reading: Reading) -> dict[int, str]:
    out: dict[int, str] = {}
    for shape in reading.shapes:
        for rank, host, _ in shape.ranks:
            if host:
                out[rank] = host
    for group in (reading.traces, reading.pages, reading.processes, reading.stacks, reading.exits):
        for one in group:
            if one.rank is not None and one.source.host:
                out.setdefault(one.rank, one.source.host)
    for event in reading.events:
        if event.rank is not None and event.host:
            out.setdefault(event.rank, event.host)
    return out


_NUMBER = re.compile(r"(\d{1,6})\D*$")


def _numbered(found: Sequence[RankStacks]) -> Sequence[RankStacks]:
    """Stacks saved by hand under names that only number the processes: dp0, worker-3.

    The number stands for the rank as long as no stack says its own and no two share one.
    """
    if any(one.rank is not None for one in found):
        return found
    out = []
    for one in found:
        stem = one.source.path.rsplit("/", 1)[-1].rsplit(".", 1)[0]
        match = _NUMBER.search(stem)
        if match is None:
            return found
        out.append(replace(one, rank=int(match[1])))
    if len({one.rank for one in out}) < max(len(out), 2):
        return found
    return out


def _stacks(found: Sequence[RankStacks], pids: Mapping[int, int]) -> dict[int, list[RankStacks]]:
    """Rank -> stacks of its own process (not of its data-loader workers), by snapshot."""
    main_pid = {rank: pid for pid, rank in pids.items()}
    out: dict[int, list[RankStacks]] = defaultdict(list)
    for stack in found:
        rank = pids.get(stack.pid or -1, stack.rank)
        if rank is None:
            continue
        if stack.pid and rank in main_pid and main_pid[rank] != stack.pid:
            continue
        out[rank].append(stack)
    for mine in out.values():
        mine.sort(key=lambda s: (s.source.snapshot, s.native))
    return dict(out)


def _stages(
    by_rank: Mapping[int, Sequence[RankStacks]],
) -> tuple[dict[int, stages.Stage], dict[int, str]]:
    """Where each main thread stands in the first snapshot, native frames added."""
    out: dict[int, stages.Stage] = {}
    cites: dict[int, str] = {}
    for rank, shots in by_rank.items():
        first = [s for s in shots if s.source.snapshot == shots[0].source.snapshot]
        merged: stages.Stage | None = None
        for shot in first:
            main = shot.main
            if main is None or not main.frames:
                continue
            stage = stages.of_thread(main)
            if merged is None:
                merged = stage
                cites[rank] = shot.source.cite(main.line or None)
            else:
                around = merged.around | stage.around
                names = (merged.names | stage.names) - around
                primary = next((n for n in stages.ORDER if n in names), merged.primary)
                merged = replace(
                    merged,
                    names=names,
                    primary=primary,
                    op=merged.op or stage.op,
                    locals=merged.locals or stage.locals,
                    around=around,
                )
        if merged is not None:
            out[rank] = merged
    return out, cites


def _ending(reading: Reading) -> set[int]:
    """Ranks that were on their way out when their last stack was taken."""
    began = min((s.detected for s in reading.stalls if s.detected), default=None)
    ends = [(e.rank, e.when) for e in reading.errors] + [(e.rank, e.when) for e in reading.exits]
    return {
        rank
        for rank, when in ends
        if rank is not None and (when is None or began is None or when < began + 1.0)
    }


def _ranks(
    reading: Reading,
    by_rank: Mapping[int, Sequence[RankStacks]],
    recorded: normalise.Recorded,
    world: int | None,
) -> list[int]:
    ranks = set(range(world or 0)) | set(by_rank) | set(recorded.logs)
    for group in (reading.pages, reading.processes, reading.exits):
        ranks |= {one.rank for one in group if one.rank is not None}
    for shape in reading.shapes:
        ranks |= {rank for rank, _, _ in shape.ranks}
    for info in recorded.groups.values():
        ranks |= set(info.members)
    for one in reading.stalls:
        ranks |= set(one.still_ranks) | set(one.moving_ranks)
    ranks |= {e.rank for e in reading.errors if e.rank is not None}
    return sorted(ranks)


def _look(reading: Reading, facts: Facts, pids: Mapping[int, int]) -> None:
    """Remember what was read, so that NO and UNKNOWN can be told apart."""
    for source in reading.looked:
        if source.kind in SOURCES:
            facts.look(source.kind, *(() if source.rank is None else (source.rank,)))
    for group in (reading.traces, reading.pages, reading.processes, reading.exits, reading.stacks):
        for one in group:
            rank = one.rank
            if rank is None and isinstance(one, ProcessState | RankStacks) and one.pid:
                rank = pids.get(one.pid)
            if rank is not None and one.source.kind in SOURCES:
                facts.look(one.source.kind, rank)
    for other in (reading.events, reading.ras, reading.stalls, reading.gpus):
        for source in {one.source for one in other}:
            if source.kind in SOURCES:
                facts.look(source.kind, *(() if source.rank is None else (source.rank,)))


def _lives(one: ProcessState) -> bool:
    """Whether the process was there, and no corpse, when it was looked at."""
    return bool(one.state) and one.state[0] not in "ZX"


def _ended_later(one: Stall) -> bool:
    """Whether the job was ended while this standstill, noted before, still stood."""
    return one.trigger in ("stall", "timeout-near") and bool(one.told_to_end or one.ended)


def _halt(situation: graph.Situation, procs: processes.Processes, deaths: exits.Deaths) -> None:
    """Stopped ranks and first deaths hold everybody up; those whom they took along do not."""
    first = {d.rank for d in (*deaths.first, *deaths.left)}
    situation.halted = frozenset(first | set(procs.stopped))
    victims = {r for r, d in deaths.gone.items() if r not in first and d.spoke}
    situation.absent = situation.absent - victims - situation.halted
    situation.inside = situation.inside | (victims - set(situation.heads))


def _recent(recorded: normalise.Recorded) -> dict[int, list[str]]:
    """Rank -> its recorded collectives as RAS spells them, without spelling of buffers."""

    def spelt(op: Op) -> str:
        return family(op.op).replace("_", "")

    return {
        rank: each(log.trace.ops, lambda op: not op.is_p2p, spelt)
        for rank, log in recorded.logs.items()
    }


def _rank_cites(
    recorded: normalise.Recorded,
    stage_cites: Mapping[int, str],
    states: Mapping[int, Sequence[ProcessState]],
) -> dict[int, tuple[str, ...]]:
    out: dict[int, tuple[str, ...]] = {}
    for rank in set(recorded.logs) | set(stage_cites) | set(states):
        cites = []
        if rank in stage_cites:
            cites.append(stage_cites[rank])
        if rank in recorded.logs:
            cites.append(recorded.logs[rank].cite())
        out[rank] = tuple(cites)
    return out


def _edges(built: graph.Graph) -> dict[int, tuple[int, ...]]:
    """Rank -> ranks that it waits for. One tuple for each operation, shared by its waiters."""
    held = [tuple(node.blockers or node.absent) for node in built.nodes]
    out: dict[int, tuple[int, ...]] = {}
    for rank, targets in built.edges.items():
        if rank < 0 or not targets:
            continue
        first = targets[0]
        out[rank] = held[-1 - first] if first < 0 else (first,)
    return out


__all__ = ["analyse"]
