#!/usr/bin/env python3
"""Makes synthetic flight-recorder dumps (format 2.10), with one fault, that torchfrtrace accepts.

    python tests/synthetic/gen_fr.py OUT --ranks 64 --entries 2000 --layout 2d --fault missing

``flat``: one world group, every entry an all_reduce on it. ``2d``: the world, TP groups
(contiguous, ``--tp`` wide) and DP groups (strided); each step is 4 TP all_reduces, a DP
reduce_scatter, a DP all_gather, and every tenth step a world all_reduce.

The last collective of the world (flat) or of the culprit's DP group (2d) is left unfinished, and
there the culprit is made to differ: ``missing`` never enqueues it, ``size`` and ``dtype`` give
another tensor, ``type`` calls broadcast, ``state`` has completed it while the others only
started. Needs the standard library only, so that a bare interpreter can run it.
"""

from __future__ import annotations

import argparse
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAULTS = ("missing", "size", "type", "dtype", "state")
EPOCH_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Plan:
    """What to make. ``frames`` is the depth of each entry's stack, None: no frames at all."""

    ranks: int = 64
    entries: int = 2000
    layout: str = "flat"
    tp: int = 8
    fault: str = "missing"
    culprit: int = 5
    frames: int | None = 12


def faulty_members(plan: Any) -> tuple[int, ...]:
    """The ranks of the group whose last collective is left unfinished."""
    if plan.layout == "flat":
        return tuple(range(plan.ranks))
    return tuple(range(plan.culprit % plan.tp, plan.ranks, plan.tp))


def _frames(depth: int, step: int) -> list[dict[str, Any]]:
    return [
        {"name": f"f{d}", "filename": f"/job/train/mod{d}.py", "line": 10 + d + (step % 3)}
        for d in range(depth)
    ]


def _groups(rank: int, plan: Any) -> dict[str, tuple[int, tuple[str, str], list[int]]]:
    """Kind -> (local id, (name, description), members) of the groups that ``rank`` is in."""
    world, tp = plan.ranks, plan.tp
    out = {"world": (0, ("0", "default_pg"), list(range(world)))}
    if plan.layout == "2d":
        block, column = divmod(rank, tp)
        out["tp"] = (1, (str(1 + block), "tp"), list(range(block * tp, (block + 1) * tp)))
        out["dp"] = (2, (str(1 + world // tp + column), "dp"), list(range(column, world, tp)))
    return out


def _entry(
    record: int,
    group: tuple[int, tuple[str, str], list[int]],
    seq: int,
    call: tuple[str, int | list[int], int | list[int], str],
    created: int,
    frames: list[dict[str, Any]] | None,
) -> dict[str, Any]:
    name, inputs, outputs, dtype = call
    out: dict[str, Any] = {} if frames is None else {"frames": frames}
    out |= {
        "record_id": record,
        "pg_id": group[0],
        "process_group": group[1],
        "thread_name": "pt_main_thread",
        "thread_id": "140000000000000",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": created,
        "input_sizes": [inputs],
        "input_dtypes": [dtype],
        "output_sizes": [outputs],
        "output_dtypes": [dtype],
        "state": "completed",
        "time_discovered_started_ns": created + 50_000,
        "time_discovered_completed_ns": created + 900_000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "duration_ms": 0.85,
    }
    return out


def _step(plan: Any, step: int, replicas: int) -> list[tuple[str, Any]]:
    """The calls of one training step: (kind of group, call)."""
    if plan.layout == "flat":
        return [("world", ("nccl:all_reduce", [1024], [1024], "BFloat16"))]
    tp = ("nccl:all_reduce", [16, 4096], [16, 4096], "BFloat16")
    scatter = ("nccl:_reduce_scatter_base", [4096 * replicas], [4096], "BFloat16")
    gather = ("nccl:_all_gather_base", [4096], [4096 * replicas], "BFloat16")
    calls = [("tp", tp)] * 4 + [("dp", scatter), ("dp", gather)]
    return [*calls, ("world", ("nccl:all_reduce", [1], [1], "Float"))] if step % 10 == 9 else calls


def build(rank: int, plan: Any) -> dict[str, Any]:
    """The dump of ``rank``. ``plan`` is a Plan or anything with its attributes."""
    groups = _groups(rank, plan)
    seq = dict.fromkeys(groups, 0)
    entries: list[dict[str, Any]] = []
    created = EPOCH_NS + rank * 1000
    step = 0
    while len(entries) < plan.entries:
        frames = plan.frames
        for kind, call in _step(plan, step, len(groups["dp"][2]) if "dp" in groups else 0):
            seq[kind] += 1
            created += 1_000_000
            stack = None if frames is None else _frames(frames, step)
            entries.append(
                _entry(len(entries), groups[kind], seq[kind], call, created, stack)
            )  # fmt: skip
        step += 1
    del entries[plan.entries :]
    if plan.fault != "none":
        _break(rank, plan, entries, groups["world" if plan.layout == "flat" else "dp"])
    status = {}
    for local, name, _ in groups.values():
        mine = [e for e in entries if e["process_group"] == name]
        last = max((e["collective_seq_id"] for e in mine), default=-1)
        done = [e["collective_seq_id"] for e in mine if e["state"] == "completed"]
        status[str(local)] = {
            "last_enqueued_collective": last,
            "last_started_collective": last,
            "last_completed_collective": max(done, default=-1),
        }
    config = {
        name: {"name": name, "desc": desc, "ranks": str(members)}
        for _, (name, desc), members in groups.values()
    }
    return {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.29.7",
        "pg_status": status,
        "entries": entries,
    }


def _break(
    rank: int,
    plan: Any,
    entries: list[dict[str, Any]],
    group: tuple[int, tuple[str, str], list[int]],
) -> None:
    """Leave the group's last collective unfinished; other groups stop there with theirs done."""
    last = max(i for i, e in enumerate(entries) if e["process_group"] == group[1])
    del entries[last + 1 :]
    if plan.culprit not in group[2]:
        return
    entry, mine = entries[last], rank == plan.culprit
    if mine and plan.fault == "missing":
        entries.pop()
        return
    if mine and plan.fault == "state":
        return
    entry.update(state="started", time_discovered_completed_ns=None, retired=False)
    entry.pop("duration_ms")
    if mine and plan.fault == "size":
        entry["input_sizes"] = [[7]]
    elif mine and plan.fault == "dtype":
        entry["input_dtypes"] = entry["output_dtypes"] = ["Float"]
    elif mine and plan.fault == "type":
        entry["profiling_name"] = "nccl:broadcast"


def write(folder: Path, plan: Any, prefix: str = "nccl_trace_rank_", as_json: bool = False) -> None:
    """Write the dumps of all ranks into ``folder``, as ``<prefix><rank>`` or that and .json."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(plan.ranks):
        dump = build(rank, plan)
        if as_json:
            (folder / f"{prefix}{rank}.json").write_text(json.dumps(dump), encoding="utf-8")
        else:
            (folder / f"{prefix}{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def main(argv: list[str] | None = None) -> None:
    """Read the options and write the dumps."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--layout", choices=["flat", "2d"], default="flat")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--fault", choices=["none", *FAULTS], default="missing")
    parser.add_argument("--culprit", type=int, default=5)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prefix", default="nccl_trace_rank_")
    given = parser.parse_args(argv)
    names = ("ranks", "entries", "layout", "tp", "fault", "culprit", "frames")
    plan = Plan(**{name: getattr(given, name) for name in names})
    write(given.out, plan, given.prefix, given.json)


if __name__ == "__main__":
    main()
