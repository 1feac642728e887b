"""States the cross-rank facts: mismatches, lags, stages, waits; and what could not be known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fabwatch.signatures.analysis import mismatch, model
from fabwatch.signatures.analysis.graph import Graph, Head
from fabwatch.signatures.analysis.logs import Logs
from fabwatch.signatures.analysis.mismatch import Split
from fabwatch.signatures.analysis.model import Root
from fabwatch.signatures.analysis.normalise import Recorded
from fabwatch.signatures.analysis.processes import Processes
from fabwatch.signatures.analysis.roots import Scene
from fabwatch.signatures.analysis.situation import Assembled
from fabwatch.signatures.analysis.snapshots import Motion
from fabwatch.signatures.analysis.stages import Stage
from fabwatch.watchdog.evidence.facts import Fact, Facts, Scalar, fact
from fabwatch.watchdog.evidence.observations import Frame, Op, RankStacks
from fabwatch.watchdog.evidence.op_columns import how_many

Key = tuple[str, int]
_MISMATCH_FACT = {
    "type": "collective.type-mismatched",
    "size": "collective.size-mismatched",
    "dtype": "collective.dtype-mismatched",
    "root": "collective.root-mismatched",
}
_SLOW_WORK = ("checkpoint", "evaluation", "dataloader", "compile", "io")


def mismatches(
    recorded: Recorded,
    log: Logs,
    stages: Mapping[int, Stage],
    stage_cites: Mapping[int, str],
    made: Assembled,
    facts: Facts,
) -> tuple[dict[Key, list[Split]], dict[Key, tuple[str, ...]]]:
    """The first disagreement of every group, from records, fingerprints and stacks."""
    out: dict[Key, list[Split]] = {}
    cites: dict[Key, tuple[str, ...]] = {}
    for group, by_seq in recorded.by_seq.items():
        found = mismatch.find(group, recorded.groups[group].members, by_seq)
        if not found:
            continue
        key = (group, found[0].seq)
        ops = by_seq[found[0].seq]
        odd = [r for r in found[0].odd if r in ops][:4]
        rest = [r for r in ops if r not in found[0].odd][:2]
        out[key] = found
        cites[key] = tuple(recorded.logs[r].cite(ops[r]) for r in (*odd, *rest))
    for one in log.splits:
        if not any(split.aspect == one.aspect for found in out.values() for split in found):
            key = (one.group, one.seq)
            out[key] = [one]
            cites[key] = log.split_cites[:6]
    roots = _roots_by_stack(made, stages)
    if roots is not None and (roots.group, roots.seq) not in out:
        key = (roots.group, roots.seq)
        out[key] = [roots]
        ranks = [r for _, who in roots.values for r in who]
        cites[key] = tuple(stage_cites[r] for r in ranks[:6] if r in stage_cites)
    for key, found in out.items():
        for one in found:
            table = "; ".join(f"{v}: {len(who)} ranks" for v, who in one.values[:4])
            facts.add(
                fact(
                    _MISMATCH_FACT[one.aspect],
                    ranks=one.ranks,
                    cites=cites[key],
                    group=made.labels.get(one.group, one.group),
                    seq=one.seq,
                    op=one.op,
                    tie=one.tie,
                    values=table,
                    finished=not one.unfinished,
                )
            )
    return out, cites


def _roots_by_stack(made: Assembled, stages: Mapping[int, Stage]) -> Split | None:
    """Different src (broadcast, scatter) or dst (reduce, gather) of one operation, from locals."""
    at: dict[Key, dict[int, str]] = defaultdict(dict)
    ops: dict[Key, str] = {}
    for rank, head in made.situation.heads.items():
        stage = stages.get(rank)
        if head.is_p2p or stage is None or stage.primary != "collective":
            continue
        if head.op not in ("broadcast", "reduce", "scatter", "gather"):
            continue
        names = ("src",) if head.op in ("broadcast", "scatter") else ("dst",)
        value = next((v for k, v in stage.locals if k in names and v.strip().isdigit()), None)
        if value is not None:
            at[(head.group, head.seq)][rank] = value
            ops[(head.group, head.seq)] = head.op
    for key, values in sorted(at.items()):
        if len(values) > 1:
            found = mismatch.split(key[0], key[1], ops[key], "root", values, True)
            if found is not None:
                return found
    return None


def shifts(
    recorded: Recorded,
    frames: Mapping[int, Mapping[tuple[str, int], tuple[Frame, ...]]],
    made: Assembled,
    facts: Facts,
) -> list[Split]:
    """Groups with waiters in which some ranks made one call more, ever since it happened."""
    waited = {h.group for h in made.situation.heads.values() if not h.is_p2p}
    out = []
    all_framed = all(
        how_many(log.trace.ops, lambda op: bool(op.frames)) == len(log.trace.ops)
        for log in recorded.logs.values()
    )
    for group in sorted(waited):
        lanes = recorded.by_seq.get(group)
        if lanes is None or (all_framed and not lanes.differing(_site)):
            continue
        sites: dict[int, dict[int, str]] = defaultdict(dict)
        names: dict[int, str] = {}
        for seq, ops in lanes.items():
            for rank, op in ops.items():
                seen = op.frames or frames.get(rank, {}).get((op.backend, op.record_id), ())
                if seen and (site := mismatch.call_site(seen)):
                    sites[rank][seq] = site
                    names[seq] = op.op
        found = mismatch.shifted(group, sites, names)
        if found is None:
            continue
        cites = [
            recorded.logs[r].cite(recorded.by_seq[group][found.seq][r])
            for r in (*found.ranks[:3], *(r for r in sites if r not in found.ranks))
            if r in recorded.by_seq[group][found.seq]
        ][:5]
        facts.add(
            fact(
                "collective.call-sites-differ",
                ranks=found.ranks,
                cites=cites,
                group=made.labels.get(group, group),
                seq=found.seq,
                op=found.op,
                values="; ".join(v for v, _ in found.values[:3]),
            )
        )
        out.append(found)
    return out


def _site(op: Op) -> str:
    return mismatch.call_site(op.frames)


def say_stages(
    stages: Mapping[int, Stage],
    cites: Mapping[int, str],
    sleeping: set[int],
    facts: Facts,
) -> None:
    """One fact for each stage and rank."""
    for rank, stage in sorted(stages.items()):
        names = set(stage.names) | ({"sleep"} if rank in sleeping else set())
        frame = str(stage.frame) if stage.frame else ""
        for name in sorted(names):
            facts.add(
                fact(
                    f"stack.in-{name}",
                    ranks=[rank],
                    frame=frame,
                    cites=[cites[rank]] if rank in cites else [],
                )
            )


def say_graph(
    built: Graph,
    scene: Scene,
    roots: Sequence[Root],
    waiting: Sequence[int],
    made: Assembled,
    facts: Facts,
) -> None:
    """Facts of the graph. A lag is stated for the ranks of roots that stand, nobody else."""
    situation = scene.situation
    for node in built.nodes:
        heads = [situation.heads[r] for r in node.waiters]
        facts.add(
            fact(
                "collective.pending",
                ranks=node.waiters,
                op=node.op,
                seq=node.seq,
                group=made.labels.get(node.group, node.group),
                cites=[h.cite for h in heads[:4] if h.cite],
            )
        )
    for root in roots:
        _say_root(root, built, scene, made, facts)
    if waiting and roots:
        heads_of = [situation.heads[r] for r in waiting[:4]]
        facts.add(fact("wait.waiting", ranks=waiting, cites=[h.cite for h in heads_of if h.cite]))


def _say_root(root: Root, built: Graph, scene: Scene, made: Assembled, facts: Facts) -> None:
    detail: dict[str, Scalar] = {
        "frame": root.frame,
        "stage": root.stage,
        "suspects": ", ".join(map(str, root.suspects[:32])),
        "why": root.why,
    }

    def say(name: str, ranks: Sequence[int], **more: Scalar) -> None:
        given = {"group": root.group, "op": root.op, "seq": root.seq, **more}
        facts.add(_fact(name, ranks, root.cites, given))

    say(
        "wait.root",
        root.ranks,
        kind=root.kind,
        sure=root.sure,
        waiting=len(root.others),
        **{k: v for k, v in detail.items() if v != ""},
    )
    if root.kind == model.IN_COLLECTIVE and root.stage != "p2p":
        say("collective.incomplete", root.suspects)
    elif root.kind == model.COMPLETION_LAG:
        if root.ranks and root.sure:
            say("collective.completion-lagging", root.ranks)
        else:
            say("collective.incomplete", root.others)
    elif root.kind == model.GPU_STALLED and root.stage == "device":
        say("collective.not-started", root.ranks)
        say("collective.incomplete", root.others)
    elif root.kind == model.GPU_STALLED and root.stage == "device-sync" and root.sure:
        say("gpu.kernel-running", root.ranks)
    elif root.kind == model.DEADLOCK:
        say("collective.deadlocked", root.ranks, why=root.why, first_use=root.first_use)
    elif root.kind == model.P2P_CYCLE:
        say("p2p.deadlocked", root.ranks, why=root.why)
    elif root.kind == model.P2P_UNMATCHED:
        say("p2p.unmatched", root.ranks, why=root.why)
    if root.kind == model.LEFT and not any(r in scene.deaths.gone for r in root.ranks):
        say("process.left", root.ranks, teardown=True)
    if root.kind == model.ABSENT:
        for rank in (*root.ranks, *root.suspects)[:64]:
            say("process.absent", [rank], sure=False)
    _say_lag(root, built, scene, made, facts)


def _fact(
    name: str, ranks: Sequence[int], cites: Sequence[str], detail: Mapping[str, Scalar]
) -> Fact:
    return replace(fact(name, ranks=ranks, cites=cites), detail=tuple(sorted(detail.items())))


def _say_lag(root: Root, built: Graph, scene: Scene, made: Assembled, facts: Facts) -> None:
    crossed = (model.DEADLOCK, model.P2P_CYCLE, model.CALL_SITES)
    if root.kind in (*model.MISMATCHES, *crossed) or not root.ranks:
        return
    mine = set(root.ranks)
    for node in built.nodes:
        entered = scene.situation.entered.get(node.group, {})
        late = [
            r for r in (*node.blockers, *node.absent) if r in mine and entered.get(r, -1) < node.seq
        ]
        if not late:
            continue
        lags = [node.seq - entered[r] for r in late if r in entered and entered[r] >= 0]
        heads = [scene.situation.heads[r] for r in node.waiters[:2]]
        cites = [
            *(c for r in late[:4] for c in scene.rank_cites.get(r, ())),
            *(h.cite for h in heads if h.cite),
        ]
        facts.add(
            fact(
                "collective.lagging",
                ranks=late,
                cites=cites,
                seq=node.seq,
                op=node.op,
                group=made.labels.get(node.group, node.group),
                lag=max(lags, default=None),
                sure=root.sure,
            )
        )


def say_timeouts(
    roots: Sequence[Root], motion: Motion, log: Logs, timeout_s: float | None, facts: Facts
) -> None:
    """A reported time-out while the slow rank was still getting on with honest work."""
    if not log.timeouts:
        return
    for root in roots:
        busy = [r for r in root.ranks if r in motion.busy or r in motion.moving_stacks]
        if root.kind == model.HOST_STALL and root.stage in _SLOW_WORK and busy:
            facts.add(
                fact(
                    "timeout.short",
                    ranks=busy,
                    stage=root.stage,
                    timeout_s=timeout_s,
                    cites=[*(e.cite for e in log.timeouts[:2]), *root.cites[:2]],
                )
            )


def say_call_sites(
    by_rank: Mapping[int, Sequence[RankStacks]],
    stages: Mapping[int, Stage],
    cites: Mapping[int, str],
    motion: Motion,
    facts: Facts,
) -> None:
    """Every rank whose stack is known stands in the same collective, from different code.

    A running job shows that for a moment; a rank that was seen to move keeps it unsaid.
    """
    sites: dict[int, str] = {}
    for rank, stage in stages.items():
        main = by_rank[rank][0].main
        if stage.primary != "collective" or main is None or not stage.op:
            return
        frame = next((f for f in main.frames if not _LIBRARY.search(f.file)), None)
        if frame is None:
            return
        sites[rank] = f"{frame.file}:{frame.function}"
    ops = {stage.op for stage in stages.values()}
    if len(sites) < 2 or len(ops) > 1 or set(sites) & (motion.advanced | motion.moving_stacks):
        return
    ranks, tie = mismatch.vote(sites)
    if ranks:
        table = "; ".join(f"rank {r}: {site}" for r, site in sorted(sites.items())[:6])
        facts.add(
            fact(
                "stack.call-sites-differ",
                ranks=ranks,
                cites=[cites[r] for r in ranks[:6] if r in cites],
                op=next(iter(ops)),
                tie=tie,
                values=table,
            )
        )


_LIBRARY = re.compile(r"(?:^|/)torch/|(?:^|/)threading\.py$|(?:^|/)contextlib\.py$")


def say_same_stack(
    by_rank: Mapping[int, Sequence[RankStacks]],
    stages: Mapping[int, Stage],
    ranks: Sequence[int],
    heads: Mapping[int, Head],
    facts: Facts,
) -> None:
    """Every rank idle in one and the same place that is no communication."""
    if len(ranks) < 2 or heads or set(stages) < set(ranks):
        return
    places = set()
    cites = []
    for rank in ranks:
        main = by_rank[rank][0].main
        if main is None or stages[rank].primary in ("collective", "p2p", "device-sync", ""):
            return
        if main.active and stages[rank].primary == "user-code":
            return
        places.add(tuple((f.function, f.file, f.line) for f in main.frames))
        cites.append(by_rank[rank][0].source.cite(main.line or None))
    if len(places) == 1:
        stage = stages[ranks[0]]
        facts.add(
            fact(
                "wait.all-idle-same-stack",
                ranks=ranks,
                cites=cites[:8],
                stage=stage.primary,
                frame=str(stage.frame or ""),
            )
        )


def external(
    stages: Mapping[int, Stage], ranks: Sequence[int], procs: Processes, facts: Facts
) -> list[Root]:
    """Everybody waits for storage and nobody for a rank: a root without ranks."""
    same = facts.of("wait.all-idle-same-stack")
    stalled = {r for f in facts.of("storage.stalled") for r in f.where.ranks}
    if not same or not set(ranks) <= stalled:
        return []
    stage = Counter(s.primary for s in stages.values()).most_common(1)[0][0]
    cites = (*same[0].cites, *(c for cs in procs.disk_wait.values() for c in cs))
    root = Root(
        (),
        model.EXTERNAL,
        frame=str(same[0].get("frame") or ""),
        cites=cites[:8],
        others=tuple(ranks),
        stage=stage,
    )
    facts.add(fact("wait.root", cites=root.cites, kind=root.kind, stage=stage, sure=True))
    return [root]


def unknowables(
    recorded: Recorded,
    frames: Mapping[int, object],
    made: Assembled,
    motion: Motion,
    facts: Facts,
) -> None:
    """What this evidence could not have shown, although its source was read."""
    if not made.timed:
        facts.unknowable.add("collective.not-started")
    if len(frames) < 2:
        facts.unknowable.add("collective.call-sites-differ")
    if not (motion.advanced or motion.frozen or motion.stood):
        facts.unknowable |= {"progress.frozen", "progress.advancing"}
    if not motion.busy and not motion.moving_stacks:
        seen_twice = any(f.name in ("cpu.advancing", "io.advancing") for f in facts)
        if not seen_twice and motion.of(made.situation.heads).value == "unknown":
            facts.unknowable |= {"stack.moving", "io.advancing", "cpu.advancing"}
    if recorded.logs and all(log.trace.backend == "gloo" for log in recorded.logs.values()):
        facts.unknowable.add("collective.completion-lagging")
