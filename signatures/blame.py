"""Decides who is to blame, and whether the fabric is: culprits, convicted, acquitted, undecided."""

from __future__ import annotations

from collections.abc import Iterable

from fabwatch.signatures.analysis import model as kinds
from fabwatch.signatures.asking import ranks_text
from fabwatch.signatures.matching import Match, above
from fabwatch.signatures.model import Grade
from fabwatch.signatures.situation import Situation
from fabwatch.signatures.verdict import Culprits, Fabric, HangRoot, Outcome
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import BASE

BLAMING = frozenset(
    {
        kinds.HOST_STALL,
        kinds.STOPPED,
        kinds.DEAD,
        kinds.LEFT,
        kinds.ABSENT,
        kinds.CALL_SITES,
        kinds.DEADLOCK,
        kinds.P2P_CYCLE,
        kinds.P2P_UNMATCHED,
        kinds.UNEVEN,
        kinds.COMPLETION_LAG,
        kinds.GPU_STALLED,
        *kinds.MISMATCHES,
    }
)
"""Kinds of roots whose ranks are culprits by themselves, whatever the cause turns out to be."""

LINKS = frozenset(
    {
        "link.down",
        "link.silent",
        "link.errors",
        "link.limited",
        "link-counter.grew",
        "ib-port.reported",
        "ib-port.flapped",
        "ib-device.failed",
        "ib-failover.started",
        "ib-mtu.differs",
        "module.faulted",
        "mtu.blackholed",
        "nic-driver.failed",
        "sminfo.failed",
    }
)
"""Positive evidence about a link: without one of these the fabric is never convicted."""

CONVICTING = LINKS | frozenset(
    {
        "nvlink-errors.grew",
        "nvlink-training.failed",
        "nvlink5.reported",
        "nvswitch.failed",
        "pair-bandwidth.uneven",
        "pci-nic.gone",
        "pcie-link.downgraded",
        "port-rate.below",
        "rdma-link.speed-changed",
        "slot-power.insufficient",
    }
)
"""What convicts when a signature of the fabric rests on it; seen beside another cause, some of it
(a lower speed of an idle device) is so ordinary that it does not keep the fabric from acquittal."""

HOST_SIDE = frozenset(
    {
        "process.stopped",
        "process.exited",
        "process.killed",
        "process.left",
        "process.oom-killed",
        "process.segfaulted",
        "process.aborted",
        "process.terminated",
        "gil.held",
        "exception.raised",
        "dataloader-worker.killed",
        "dataloader-worker.failed",
        "cuda.out-of-memory",
        "cuda.sticky-error",
        "memory.host-exhausted",
        "shm.exhausted",
        "disk.full",
        "storage.stalled",
        "store.port-taken",
        "interface.none-matched",
        "gpu.duplicated",
        "inputs.exhausted",
        "collective.type-mismatched",
        "collective.size-mismatched",
        "collective.dtype-mismatched",
        "collective.root-mismatched",
        "collective.call-sites-differ",
        "collective.deadlocked",
        "p2p.deadlocked",
        "p2p.unmatched",
        "gpu.kernel-running",
        "gpu.xid",
        "wait.all-idle-same-stack",
        "stack.in-dataloader",
        "stack.in-checkpoint",
        "stack.in-evaluation",
        "stack.in-compile",
        "stack.in-sleep",
        "stack.in-io",
        "stack.in-lock",
        "stack.in-teardown",
        "stack.in-user-code",
    }
)
"""Facts that put the cause on a host, a device or in the program: they acquit the fabric."""

ON_THE_WAY = frozenset(
    {
        *LINKS,
        "bootstrap-connect.failed",
        "bootstrap.interface-odd",
        "ib-qp.refused",
        "network.error-reported",
        "peer-address.odd",
        "store.unreachable",
        "store.lost",
    }
)
"""Facts that also a fault between hosts may show: a signature that rests on one acquits nobody."""


_OFF_THE_WIRE = frozenset({"application", "gpu", "host", "numerics", "performance"})
"""Layers whose likely causes acquit the fabric; what set-ups of NCCL do wrong may be its own."""


def causes(it: Situation) -> list[Match]:
    """The matches that stand on their own: the best one, and others that it does not explain.

    A further cause must be confirmed, name ranks of its own, and be neither a consequence nor a
    general form of another standing match at the same ranks.
    """
    standing = it.standing
    if not standing:
        return []
    out = [standing[0]]
    for one in standing[1:]:
        taken = {rank for other in out for rank in other.where.ranks}
        mine = set(one.where.ranks)
        if one.grade is not Grade.CONFIRMED or not mine or mine & taken:
            continue
        rivals = {other.id: other for other in standing if other is not one}
        better = [rivals[name] for name in above(one, rivals, it.library)]
        if any(one.id in r.signature.explains or mine & set(r.where.ranks) for r in better):
            continue
        if any(other.id in one.signature.explains for other in out):
            continue
        out.append(one)
    return out


def culprits_of(it: Situation, outcome: Outcome, found: list[Match]) -> Culprits:
    """Who is to blame. ``found`` are the causes of a diagnosis."""
    if outcome not in ("diagnosed", "cannot-tell"):
        return Culprits()
    blaming = [root for root in it.roots if root.kind in BLAMING]
    if outcome == "cannot-tell":
        return _culprits(it, (rank for root in blaming for rank in root.ranks))
    ranks: set[int] = set()
    hosts: set[str] = set()
    devices: set[str] = set()
    links: set[str] = set()
    for one in found:
        blames = one.signature.blames
        ranks |= _ranks(it, one) if "ranks" in blames else set()
        hosts |= set(one.where.hosts) if "hosts" in blames else set()
        devices |= set(one.where.devices) if "devices" in blames else set()
        links |= set(one.where.links) if "links" in blames else set()
    for root in blaming:
        if ranks & set(root.ranks):
            ranks |= set(root.ranks)  # the same root holds them all, whatever is known of each
    lost = "ranks" in found[0].signature.blames and not (ranks or hosts or devices or links)
    if lost and len(blaming) == 1:
        ranks |= set(blaming[0].ranks)
    return _culprits(it, ranks, hosts, devices, links)


def _ranks(it: Situation, one: Match) -> set[int]:
    """The ranks that a match blames; of a fault of one host's network, those on that host."""
    if one.signature.layer != "fabric" or one.where.ranks:
        return set(one.where.ranks)
    return {rank for rank, host in it.hosts.items() if host in one.where.hosts}


def _culprits(
    it: Situation,
    ranks: Iterable[int],
    hosts: Iterable[str] = (),
    devices: Iterable[str] = (),
    links: Iterable[str] = (),
) -> Culprits:
    who = sorted(set(ranks))
    where = {it.hosts[rank] for rank in who if it.hosts.get(rank)} | set(hosts)
    return Culprits(
        ranks=tuple(who),
        hosts=tuple(sorted(where)),
        devices=tuple(sorted(set(devices))),
        links=tuple(sorted(set(links))),
    )


def fabric_of(
    it: Situation, outcome: Outcome, found: list[Match]
) -> tuple[Fabric, tuple[str, ...]]:
    """Whether the fabric is to blame, with the reasons.

    Convicted only on positive evidence of a link; acquitted when the cause is seen on a host, a
    device or in the program; else undecided.
    """
    if outcome == "healthy":
        return "acquitted", ("nothing is wrong",)
    links = it.any_yes(LINKS)
    guilty = [one for one in found if one.signature.layer == "fabric" and _held(one) & CONVICTING]
    if guilty:
        return "convicted", tuple(
            f"{one.id}: {', '.join(sorted(_held(one) & CONVICTING))}" for one in guilty
        )
    innocent = [
        f"{one.id}: {', '.join(sorted(seen))}" for one in found if (seen := _off_the_wire(it, one))
    ]
    if not found:
        innocent = [text for root in it.roots if (text := _host_side(it, root))]
        if len(innocent) < len(it.roots):
            innocent = []
    if links and (innocent or found):
        return "undecided", tuple([*innocent, f"but there is {', '.join(links)}"])
    if innocent:
        return "acquitted", tuple(innocent)
    return "undecided", ("no evidence tells a link from a host or a device",)


def _off_the_wire(it: Situation, one: Match) -> set[str]:
    """Facts of the match that put the cause off the wire.

    A device that is two or more operations behind is not held by the network (its last hop would
    explain one).
    """
    held = _held(one)
    seen = held & HOST_SIDE
    off = one.signature.layer in _OFF_THE_WIRE and not it.any_yes(ON_THE_WAY)
    sure = one.grade is Grade.CONFIRMED or (one.grade.stands and off)
    if sure and one.signature.layer != "fabric" and not held & ON_THE_WAY:
        # The host's own software or its readings state the cause, and nothing is about the way:
        # no fact of a likely one's whole evidence, no fact of a confirmed one itself.
        seen |= {p.clue.fact for p in one.points if p.counted and p.worth > 0} - BASE
    for fact in it.facts.of("collective.completion-lagging"):
        lag = fact.get("lag")
        if isinstance(lag, int) and lag >= 2 and set(fact.where.ranks) & set(one.where.ranks):
            seen.add(fact.name)
    return seen


def _held(one: Match) -> set[str]:
    return {point.clue.fact for point in one.points if point.known is Known.YES}


def _host_side(it: Situation, root: HangRoot) -> str:
    """Why a root of the wait-for graph is on the host's side, or "" if that is not known."""
    if root.kind not in BLAMING or not root.ranks:
        return ""
    for fact in it.facts:
        if fact.name in HOST_SIDE and set(root.ranks) & set(fact.where.ranks):
            return f"{ranks_text(root.ranks)}: {fact.name}"
    if root.kind == kinds.HOST_STALL and root.sure and set(root.ranks) <= it.recorded:
        return f"{ranks_text(root.ranks)}: nothing in flight in any group"
    return ""
