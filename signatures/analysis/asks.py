"""Says what to fetch next, and with which command, where evidence does not decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabwatch.signatures.analysis import model
from fabwatch.signatures.analysis.model import Ask, Root
from fabwatch.signatures.analysis.roots import Scene
from fabwatch.signatures.analysis.situation import Assembled
from fabwatch.signatures.analysis.snapshots import Motion
from fabwatch.signatures.asking import ranks_text
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.observations import RankTrace


def next_steps(
    roots: Sequence[Root],
    scene: Scene,
    made: Assembled,
    motion: Motion,
    ranks: Sequence[int],
    hosts: Mapping[int, str],
    pids: Mapping[int, int],
    traces: Sequence[RankTrace],
) -> list[Ask]:
    """The two to five things that would decide, most decisive first, without doubles."""
    out: list[Ask] = []
    pid_of = {rank: pid for pid, rank in pids.items()}
    recorded = {trace.rank for trace in traces}
    for root in roots:
        if lost := [rank for rank in root.unseen if rank not in recorded]:
            out.append(_dumps(lost, hosts))
        out += _for_root(root, scene, hosts, pid_of)
    if (
        not roots and made.situation.heads and motion.of(made.situation.heads) is Known.UNKNOWN
    ) or (
        any(r.kind in (model.HOST_STALL, model.DEADLOCK) for r in roots)
        and (motion.of(made.situation.heads) is Known.UNKNOWN)
    ):
        out.append(_twice())
    if not roots and made.situation.absent and traces:
        out.append(_dumps(sorted(made.situation.absent), hosts))
    return list(dict.fromkeys(out))[:6]


def _twice() -> Ask:
    return Ask(
        "a second snapshot, 10 s later",
        "counters that move mean slow, counters that stand mean stuck",
        "fabwatch capture",
    )


def _names(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    if not any(rank in hosts for rank in ranks):
        return ranks_text(ranks)
    shown = [f"{r} on {hosts[r]}" if r in hosts else str(r) for r in ranks[:8]]
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown)}{more}"


def _dumps(ranks: Sequence[int], hosts: Mapping[int, str]) -> Ask:
    return Ask(
        f"flight-recorder dump of {_names(ranks, hosts)}",
        "nothing is known of whom the others may be waiting for",
        "fabwatch capture, or collect nccl_trace_rank_N from their hosts",
    )


def _pid(ranks: Sequence[int], pids: Mapping[int, int]) -> str:
    return str(pids[ranks[0]]) if ranks and ranks[0] in pids else "PID"


def _for_root(
    root: Root, scene: Scene, hosts: Mapping[int, str], pids: Mapping[int, int]
) -> list[Ask]:
    suspects = root.ranks or root.suspects
    pid = _pid(suspects, pids)
    if root.kind == model.ABSENT:
        return [
            _dumps(suspects, hosts),
            Ask(
                f"process state of {_names(suspects, hosts)}",
                "tells dead from stopped from blocked",
                f"grep -E 'State|TracerPid' /proc/{pid}/status; py-spy dump --pid {pid}",
            ),
        ]
    if root.kind == model.HOST_STALL and not root.stage:
        return [
            Ask(
                f"Python stack of {_names(suspects, hosts)}",
                "says what its own code does instead of the collective",
                f"py-spy dump --nonblocking --pid {pid}",
            )
        ]
    if root.kind in (model.IN_COLLECTIVE, model.GPU_STALLED, model.COMPLETION_LAG):
        if root.ranks and root.sure:
            return []
        return _device_or_wire(root, hosts)
    if root.kind == model.UNEVEN:
        return [
            Ask(
                "call sites of the last 50 operations of each rank",
                "tell one call too many from data that ended early",
                "flight-recorder pickles with frames of all ranks",
            )
        ]
    if root.kind == model.SIZE_MISMATCH and not root.ranks and not root.unseen:
        return [_dumps(suspects or sorted(scene.situation.absent), hosts)]
    return []


def _device_or_wire(root: Root, hosts: Mapping[int, str]) -> list[Ask]:
    if root.stage == "p2p":
        return [
            Ask(
                "a second snapshot of both ends' stacks and socket bytes",
                "bytes that move mean slow",
                "ss -tinp",
            )
        ]
    return [
        Ask(
            f"GPU utilisation and power of {_names(root.suspects or root.others, hosts)}",
            "100 % at low power is a kernel that spins, 0 % is an idle queue",
            "nvidia-smi --query-gpu=index,utilization.gpu,power.draw --format=csv",
        ),
        Ask(
            "NIC byte and error counters at both ends, twice, 5 s apart",
            "counters that stand still between two hosts accuse the wire",
            "ip -s link; ethtool -S DEV; cat /sys/class/infiniband/*/ports/*/counters/*",
        ),
        Ask(
            "NCCL's proxy state of each rank",
            "says whether it waits for its own GPU, the wire or the peer",
            "kill -SIGNAL PID of a job started with NCCL_PROXY_DUMP_SIGNAL=SIGNAL",
        ),
    ]
