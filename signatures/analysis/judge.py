"""Weighs the roots of the graph against motion, deaths and gaps, and refuses what may be noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fabwatch.signatures.analysis import model
from fabwatch.signatures.analysis.exits import Death
from fabwatch.signatures.analysis.graph import Graph
from fabwatch.signatures.analysis.logs import Logs
from fabwatch.signatures.analysis.mismatch import Split
from fabwatch.signatures.analysis.model import Doubt, Root
from fabwatch.signatures.analysis.roots import Scene, mismatch_root, name_roots
from fabwatch.signatures.analysis.situation import Assembled
from fabwatch.signatures.analysis.snapshots import YOUNG_S, Motion
from fabwatch.watchdog.evidence.known import Known

_POSITIVE = (model.STOPPED, model.DEAD)
"""Kinds that hold whatever the counters do."""

_BY_WAITING = (
    model.HOST_STALL,
    model.ABSENT,
    model.IN_COLLECTIVE,
    model.COMPLETION_LAG,
    model.GPU_STALLED,
    model.P2P_CYCLE,
    model.P2P_UNMATCHED,
    model.DEADLOCK,
    model.LEFT,
    model.UNEVEN,
)
"""Kinds that a running job, caught between two steps, can show for a moment."""


@dataclass(slots=True)
class Judgement:
    """The roots that stand, and what speaks against them."""

    roots: list[Root] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    refused: list[Root] = field(default_factory=list)


def judge(
    built: Graph,
    scene: Scene,
    made: Assembled,
    motion: Motion,
    log: Logs,
    shifts: Sequence[Split],
) -> Judgement:
    """Name the roots and keep those that the rest of the evidence bears out."""
    out = Judgement()
    scene.frozen = motion.of(scene.situation.heads)
    roots = name_roots(built, scene)
    roots = _preamble(roots, scene, log, built)
    roots = _deaths(roots, scene, motion)
    roots = _shifts(roots, scene, shifts)
    roots = _lone_waiter(roots, scene)
    roots = _gaps(roots, scene)
    for root in roots:
        reason = _refuse(root, made, motion, scene)
        if reason:
            out.refused.append(root)
            out.doubts.append(Doubt(reason, root.cites[:3]))
        else:
            out.roots.append(root)
    if not out.roots and not out.refused:
        out.roots += _named_by_barrier(log, scene)
    _speak_against(out, scene)
    return out


def _refuse(root: Root, made: Assembled, motion: Motion, scene: Scene) -> str:
    """Why this root may be no more than a running job's snapshot; "" when it stands."""
    if root.kind in _POSITIVE or root.kind not in _BY_WAITING:
        return ""
    if root.kind == model.LEFT and any(r in scene.deaths.gone for r in root.ranks):
        return ""
    leaving = [scene.deaths.leaving[r] for r in root.ranks if r in scene.deaths.leaving]
    if root.kind == model.HOST_STALL and leaving:
        return f"host-stall of {_who(root)}: refused, it was on its way out ({leaving[0]})"
    waiters = set(root.others) | set(root.suspects)
    if root.kind in (model.DEADLOCK, model.P2P_CYCLE, model.P2P_UNMATCHED):
        waiters |= set(root.ranks)
    moving = motion.of(waiters)
    what = f"{root.kind} of {_who(root)}"
    if moving is Known.YES:
        return f"{what}: refused, the ranks that wait are advancing"
    if set(root.ranks) & set(made.stale):
        return f"{what}: refused, the dump is older than its peers'"
    if moving is Known.NO:
        return ""
    if motion.exit_trigger and scene.deaths.first:
        return f"{what}: refused, the capture was made at an exit, nobody had waited long"
    if made.basis == "ras":
        return f"{what}: refused, counts of one RAS poll differ in any running job"
    ages = [made.ages_s[r] for r in waiters if r in made.ages_s]
    if ages and max(ages) < YOUNG_S:
        return f"{what}: refused, nobody had waited {YOUNG_S:g} s when the dumps were taken"
    heads = [scene.situation.heads[r] for r in waiters if r in scene.situation.heads]
    if heads and all(h.stack for h in heads) and root.stage != "teardown":
        return f"{what}: refused, one look at stacks does not tell waiting from passing by"
    return ""


def _who(root: Root) -> str:
    ranks = root.ranks or root.suspects
    return f"rank {', '.join(map(str, ranks[:8]))}" if ranks else "nobody"


def _deaths(roots: list[Root], scene: Scene, motion: Motion) -> list[Root]:
    """Whoever died first is a root, whether or not a graph could be made."""
    first = scene.deaths.first
    if not first:
        return roots
    named = {r for root in roots if root.kind in (model.DEAD, model.LEFT) for r in root.ranks}
    others = set(scene.situation.heads) | set(scene.deaths.gone)
    others -= {d.rank for d in first}
    alike: dict[tuple[str, str, str], list[Death]] = defaultdict(list)
    for death in first:
        if death.rank not in named:
            alike[(death.kind, death.frame, death.what)].append(death)
    for (what, frame, why), same in alike.items():
        kind = model.LEFT if what == "left" else model.DEAD
        ranks = tuple(sorted(d.rank for d in same))
        cites = tuple(dict.fromkeys(c for d in same for c in d.cites))
        roots = [
            *roots,
            Root(ranks, kind, frame=frame, cites=cites, others=tuple(sorted(others)), why=why),
        ]
    if motion.of(scene.situation.heads) is not Known.NO:
        # Nothing says that anybody had hung before: survivors fall behind by a death alone.
        roots = [r for r in roots if r.kind not in (model.ABSENT, model.IN_COLLECTIVE)]
    return roots


def _preamble(roots: list[Root], scene: Scene, log: Logs, built: Graph) -> list[Root]:
    """Gloo's size complaint without two sizes on record: the rank whose record is gone."""
    if not log.preamble or any(r.kind in model.MISMATCHES for r in roots):
        return roots
    nodes = sorted(built.nodes, key=lambda n: -len(n.waiters))
    cites = tuple(e.cite for e in log.preamble[:4])
    if not nodes:
        return [*roots, Root((), model.SIZE_MISMATCH, cites=cites, sure=False)]
    node = nodes[0]
    members = scene.situation.members.get(node.group, ())
    entered = scene.situation.entered.get(node.group, {})
    lost = tuple(sorted(r for r in members if r not in entered))
    others = tuple(sorted(node.waiters))
    label = scene.labels.get(node.group, node.group)
    blamed: tuple[int, ...] = lost if len(lost) == 1 else ()
    if len(members) == 2:
        blamed = tuple(sorted(members))
    root = Root(
        blamed,
        model.SIZE_MISMATCH,
        label,
        node.op,
        node.seq,
        cites=cites,
        others=tuple(r for r in others if r not in blamed),
        stage="collective",
        sure=bool(blamed),
        suspects=() if blamed else lost,
        why="Gloo refused a message of another size; all records that are left agree",
    )
    kept = [r for r in roots if r.kind in (model.STOPPED, model.DEADLOCK)]
    return [root, *kept]


def _shifts(roots: list[Root], scene: Scene, shifts: Sequence[Split]) -> list[Root]:
    """One call more on some ranks explains whatever its group shows later."""
    for found in shifts:
        label = scene.labels.get(found.group, found.group)
        same = [r for r in roots if r.group == label and r.kind not in _POSITIVE]
        if not same:
            continue
        waiting = sorted({r for root in same for r in (*root.others, *root.ranks)})
        root = mismatch_root(found, scene, waiting)
        cites = tuple(dict.fromkeys((*root.cites, *(c for r in same for c in r.cites))))
        roots = [r for r in roots if r not in same] + [replace(root, cites=cites)]
    return roots


def _lone_waiter(roots: list[Root], scene: Scene) -> list[Root]:
    """One rank waits and all others have left: it did one round more, or they one less."""
    heads = scene.situation.heads
    left = [r for r in roots if r.kind == model.LEFT]
    gone = {r for root in left for r in root.ranks}
    if len(heads) == 1 and len(gone) >= 2 and all(r.kind == model.LEFT for r in roots):
        rank, head = next(iter(heads.items()))
        if rank in gone:
            return roots
        cites = tuple(dict.fromkeys(c for r in left for c in r.cites))
        label = scene.labels.get(head.group, head.group)
        return [
            Root(
                (),
                model.UNEVEN,
                label,
                head.op,
                head.seq,
                head.frame,
                cites,
                (rank,),
                "collective",
                False,
                tuple(sorted({rank, *gone})),
                f"only rank {rank} made call {head.seq}; the others have left",
            )
        ]
    return roots


def _gaps(roots: list[Root], scene: Scene) -> list[Root]:
    """Ranks of which nothing is known: one is named with reserve, several only as one host."""
    out = []
    for root in roots:
        if root.kind != model.ABSENT:
            out.append(root)
            continue
        known = len(root.others)
        one = len(root.ranks) == 1 and known > 1
        hosts = {scene.hosts.get(r) for r in root.ranks}
        whole_host = False
        if len(root.ranks) > 1 and len(hosts) == 1 and None not in hosts:
            host = next(iter(hosts))
            all_of_it = {r for r, h in scene.hosts.items() if h == host}
            whole_host = all_of_it <= set(root.ranks) and known > len(root.ranks)
        if one or whole_host:
            out.append(root)
        else:
            out.append(replace(root, ranks=(), suspects=root.ranks))
    return out


def _named_by_barrier(log: Logs, scene: Scene) -> list[Root]:
    """Without anything else, monitored_barrier still names who did not come."""
    if not log.barrier_missing:
        return []
    ranks = tuple(sorted(log.barrier_missing))
    stage = scene.stages.get(ranks[0])
    return [
        Root(
            ranks,
            model.HOST_STALL,
            op="monitored_barrier",
            cites=tuple(log.barrier_missing.values()),
            frame=str(stage.frame) if stage and stage.frame else "",
            stage=stage.primary if stage else "",
        )
    ]


def _speak_against(out: Judgement, scene: Scene) -> None:
    for root in out.roots:
        if root.kind != model.HOST_STALL:
            continue
        for rank in root.ranks:
            stage = scene.stages.get(rank)
            if stage is not None and stage.primary in ("collective", "p2p"):
                cite = scene.stage_cites.get(rank, "")
                out.doubts.append(
                    Doubt(
                        f"rank {rank} never entered {root.op} {root.seq} by the recorder, but its "
                        f"stack stands in {stage.op}",
                        (cite,) if cite else (),
                    )
                )
