"""Rows that are compared byte by byte come out exactly as an unpickler would read them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.evidence import pickle_rows
from fabwatch.watchdog.evidence.op_columns import COLUMNS
from fabwatch.watchdog.evidence.parsers import flight_recorder
from fabwatch.watchdog.evidence.safe_pickle import load


def row(number: int, **more: Any) -> dict[str, Any]:
    stack = [{"name": f"f{d}", "filename": f"/m{d}.py", "line": 9 + d + number % 3}
             for d in range(3)]  # fmt: skip
    return {
        "frames": stack, "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"),
        "collective_seq_id": number + 1, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": "nccl:all_reduce" if number % 5 else "nccl:broadcast",
        "time_created_ns": 1_790_000_000_000_000_000 + number, "duration_ms": number / 7,
        "input_sizes": [[number % 4, 300]], "input_dtypes": ["Float"],
        "output_sizes": [[4]], "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": number or None,
        "retired": True, "timeout_ms": 600000, "is_p2p": False, **more,
    }  # fmt: skip


def dump(rows: list[dict[str, Any]]) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    status = {"0": {"last_enqueued_collective": len(rows)}}
    return {"version": "2.10", "pg_config": groups, "entries": rows, "pg_status": status}


def unfolded(rows: pickle_rows.Rows) -> list[dict[str, Any]]:
    out = []
    for content, *numbers in rows.rows:
        one = dict(rows.contents[content])
        one.update({c: n for c, n in zip(COLUMNS, numbers, strict=True) if n is not None})
        out.append(one)
    return out


def without_durations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in one.items() if k != "duration_ms"} for one in rows]


@pytest.mark.parametrize("count", [3, 255, 999, 1000, 1001, 2001, 3000])
@pytest.mark.parametrize("protocol", [2, 3])
def test_rows_in_batches_of_any_length_are_read_whole(count: int, protocol: int) -> None:
    value = dump([row(n) for n in range(count)])
    found = pickle_rows.read(pickle.dumps(value, protocol), "entries", COLUMNS, ("duration_ms",))
    assert found is not None and not found.truncated
    assert without_durations(unfolded(found)) == without_durations(value["entries"])
    assert {**found.value, "entries": 0} == {**value, "entries": 0}
    assert len(found.contents) < 120


def test_a_cut_pickle_keeps_its_whole_rows_and_says_that_it_is_cut() -> None:
    value = dump([row(n) for n in range(1500)])
    data = pickle.dumps(value, 2)
    found = pickle_rows.read(data[: len(data) * 2 // 3], "entries", COLUMNS, ("duration_ms",))
    assert found is not None and found.truncated
    got = without_durations(unfolded(found))
    assert 800 < len(got) < 1200
    assert got == without_durations(value["entries"])[: len(got)]
    assert found.value["version"] == "2.10" and "pg_status" not in found.value


@pytest.mark.parametrize("protocol", [0, 1, 4, 5])
def test_what_it_does_not_know_is_left_to_the_ordinary_reader(protocol: int) -> None:
    data = pickle.dumps(dump([row(n) for n in range(40)]), protocol)
    found = pickle_rows.read(data, "entries", COLUMNS)
    assert found is None or unfolded(found) == load(data).value["entries"]


def test_a_planted_row_among_thousands_is_left_to_the_reader_that_refuses_it() -> None:
    class Planted:
        def __reduce__(self) -> Any:
            return print, ("ran",)

    rows = [row(n) for n in range(2000)]
    rows[1500]["state"] = Planted()
    assert pickle_rows.read(pickle.dumps(dump(rows), 2), "entries", COLUMNS) is None


def test_a_long_dump_gives_the_same_operations_as_the_ordinary_reader(
    make_artefact: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(n, state="scheduled" if n > 700 else "completed", retired=n < 700)
            for n in range(720)]  # fmt: skip
    rows[300]["profiling_name"] = 7
    data = pickle.dumps(dump(rows), 2)
    fast = flight_recorder.parse(make_artefact(data, "nccl_trace_rank_1"))
    monkeypatch.setattr(flight_recorder, "_LARGE", 1 << 40)
    slow = flight_recorder.parse(make_artefact(data, "nccl_trace_rank_1"))
    (one,), (other,) = fast.observations, slow.observations
    assert type(one.ops) is not type(other.ops)  # type: ignore[union-attr]
    assert one == other
    assert fast.errors == slow.errors and "1 entries are malformed" in str(fast.errors)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_bytes_makes_it_raise(data: st.DataObject) -> None:
    body = bytearray(pickle.dumps(dump([row(n) for n in range(30)]), 2))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    found = pickle_rows.read(bytes(body[:cut]), "entries", COLUMNS, ("duration_ms",))
    assert found is None or all(0 <= one[0] < len(found.contents) for one in found.rows)
