"""Reads sends and receives: whom a rank waits for, from recorders and from stacks with locals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabwatch.signatures.analysis.graph import Head
from fabwatch.signatures.analysis.normalise import GroupInfo
from fabwatch.signatures.analysis.stages import Stage
from fabwatch.watchdog.evidence.observations import Op

SENDS = frozenset({"send", "isend", "send_object_list"})


def peer_of(op: Op, rank: int, group: GroupInfo) -> tuple[int | None, bool]:
    """Global rank of the other side of a recorded send or recv, and whether we send."""
    if op.peer is None:
        return None, op.op == "send"
    src, dst = op.peer
    sending = op.op == "send"
    other = dst if sending else src
    if group.whole and other < len(group.members):
        return group.members[other], sending
    return (other if not group.members else None), sending


def from_stack(
    rank: int, stage: Stage, cite: str, members: Sequence[int] | None = None
) -> Head | None:
    """A head from a stack that stands in send or recv.

    ``src`` and ``dst`` are global ranks; ``group_src``/``group_dst`` are ranks in the group, used
    only when they are all there is and the group is the whole world (``members``).
    """
    if stage.primary != "p2p":
        return None
    sending = stage.op in SENDS
    peer = _local(stage.locals, ("dst",) if sending else ("src",))
    if peer is None:
        peer = _local(stage.locals, ("peer",))
    if peer is None:
        inner = _local(stage.locals, ("group_dst",) if sending else ("group_src",))
        if inner is not None and members is not None and inner < len(members):
            peer = members[inner]
    if peer == rank:
        peer = None
    frame = str(stage.frame) if stage.frame else ""
    name = "send" if sending else "recv"
    return Head(rank, "", -1, name, 1 << 60, peer, sending, True, True, frame, cite)


def _local(values: Sequence[tuple[str, str]], names: Sequence[str]) -> int | None:
    for key, value in values:
        if key in names:
            text = value.strip()
            if text.isdigit():
                return int(text)
    return None


def blame(ranks: Sequence[int], heads: Mapping[int, Head]) -> tuple[str, tuple[int, ...]]:
    """Kind and culprits of a cycle that holds at least one send or recv.

    Everybody in send or recv: the cycle. Else those whose partner makes no such call: a rank that
    receives from one that stands in a collective is the one whose partner call is missing.
    """
    inside = set(ranks)
    talking = [r for r in ranks if (head := heads.get(r)) is not None and head.is_p2p]
    if len(talking) == len(inside):
        return "p2p-cycle", tuple(sorted(inside))
    blamed: set[int] = set()
    for rank in talking:
        peer = heads[rank].peer
        theirs = heads.get(peer) if peer is not None else None
        blamed.add(rank)
        if theirs is not None and theirs.is_p2p and peer is not None:
            blamed.add(peer)
    return "p2p-unmatched", tuple(sorted(blamed))
