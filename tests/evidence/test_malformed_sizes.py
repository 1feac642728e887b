"""Sizes that no tensor can have are unknown, never a mismatch."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fabwatch.signatures.diagnose import diagnose
from fabwatch.watchdog.evidence.reading import read


def dump(sizes, state="scheduled", seq=2):
    def entry(number, sizes, state):
        return {
            "record_id": number,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number,
            "input_sizes": sizes,
            "input_dtypes": ["Float"],
            "output_sizes": sizes,
            "output_dtypes": ["Float"],
            "state": state,
            "retired": False,
            "timeout_ms": 600000,
            "is_p2p": False,
            "frames": [],
        }

    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}
    return pickle.dumps(
        {
            "version": "2.9",
            "pg_config": config,
            "pg_status": {},
            "entries": [entry(1, [[10]], "completed"), entry(seq, sizes, state)],
        }
    )


def ids(folder: Path, odd) -> tuple[list[str], list[str]]:
    for rank in range(4):
        sizes = odd if rank == 2 else [[10]]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(dump(sizes))
    reading = read([folder])
    verdict = diagnose(reading)
    return [one.id for one in verdict.signatures], [str(p) for p in reading.problems]


@pytest.mark.parametrize("odd", ["x", [["q"]], [[-5]], {"a": 1}, [[True]], [10]])
def test_nonsense_in_the_sizes_of_one_rank_is_no_mismatch_and_is_told(tmp_path: Path, odd) -> None:
    found, problems = ids(tmp_path, odd)
    assert "collective-size-mismatch" not in found
    assert any("nccl_trace_rank_2" in p and "malformed" in p for p in problems)


def test_other_sizes_of_one_rank_are_a_mismatch(tmp_path: Path) -> None:
    found, problems = ids(tmp_path, [[11]])
    assert found[0] == "collective-size-mismatch" and not problems


def test_a_dump_of_which_nothing_can_be_read_was_not_looked_at(tmp_path: Path) -> None:
    whole = pickle.dumps({"version": "2.9", "entries": [[1, 2]]})
    (tmp_path / "nccl_trace_rank_0").write_bytes(whole)
    reading = read([tmp_path])
    assert not reading.traces and not reading.looked
    assert any("malformed" in str(p) for p in reading.problems)
