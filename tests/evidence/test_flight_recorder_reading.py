"""Flight-recorder dumps of all versions, cut, planted, and misnamed."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import Parsed, RankTrace
from fabwatch.watchdog.evidence.parsers import flight_recorder
from fabwatch.watchdog.evidence.safe_pickle import Refused, load


def entry(**more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 1,
        "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000, "input_sizes": [[4]],
        "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": "completed", "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None, "retired": True, "timeout_ms": 600000,
        "is_p2p": False,
    }  # fmt: skip
    base.update(more)
    return base


def dump(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    ranks = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": ranks, "entries": list(entries), **more}


def read(make: Any, value: Any, name: str = "nccl_trace_rank_1", protocol: int = 2) -> Parsed:
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=protocol)
    artefact: Artefact = make(data, name)
    assert flight_recorder.sniff(artefact.head(), name) > 0
    return flight_recorder.parse(artefact)


def trace(parsed: Parsed) -> RankTrace:
    (one,) = parsed.observations
    assert isinstance(one, RankTrace)
    return one


def test_a_planted_pickle_is_refused_and_runs_nothing(make_artefact: Any, tmp_path: Path) -> None:
    """A dump with a __reduce__ gives a located error; the command never runs."""
    mark = tmp_path / "ran"

    class Planted:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {mark}",)

    for protocol in range(6):
        parsed = read(make_artefact, {"pg_config": {}, "entries": [Planted()]}, protocol=protocol)
        assert not parsed.observations
        assert "which plain data never needs" in str(parsed.errors[0])
    assert not mark.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(X\x04\x00\x00\x00truetR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02Pabc\n.",
        b"\x80\x02N\x82\x01.",
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"}p4294967295\n.",
    ],
)
def test_globals_persistent_ids_and_memo_bombs_are_refused(data: bytes) -> None:
    """Nothing that plain data does not need reaches the unpickler."""
    with pytest.raises(Refused):
        load(data)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_of_every_protocol_is_loaded(protocol: int) -> None:
    """The refusal is not simply of everything."""
    value: dict[str, Any] = {
        "a": [1, -5, 2**40, 2.5, None, True, False, "é" * 300, (1, 2), (1, 2, 3, 4), [], {}]
    }
    assert load(pickle.dumps(value, protocol)).value == value


def test_a_cut_dump_keeps_the_entries_before_the_cut(make_artefact: Any, samples: Path) -> None:
    """Partial dumps are common: what came before the cut is used, and it says so."""
    data = (samples / "flight_recorder--nccl_trace_rank_0.in").read_bytes()
    whole = trace(read(make_artefact, data))
    parsed = read(make_artefact, data[: len(data) * 2 // 3])
    part = trace(parsed)
    assert part.truncated and not whole.truncated
    assert 5 < len(part.ops) < len(whole.ops)
    assert part.ops == whole.ops[: len(part.ops)]
    assert "ends too early" in str(parsed.errors[0])


def test_a_cut_json_dump_keeps_the_entries_before_the_cut(make_artefact: Any) -> None:
    """The same for the JSON of the worker server."""
    text = json.dumps(dump(*[entry(record_id=i, collective_seq_id=i + 1) for i in range(9)]))
    parsed = read(make_artefact, text[: int(len(text) * 0.6)].encode(), "fr_trace_rank_1.json")
    part = trace(parsed)
    assert part.truncated
    assert [op.seq for op in part.ops] == list(range(1, len(part.ops) + 1))
    assert 2 < len(part.ops) < 9


def test_a_bare_list_of_torch_2_2_is_read(make_artefact: Any) -> None:
    """Microseconds, seq_id, and a group that only has its local id."""
    old = {
        "pg_id": 0, "seq_id": 7, "profiling_name": "nccl:all_reduce", "input_sizes": [[3]],
        "output_sizes": [[3]], "time_created_us": 1_700_000_000_000_000, "frames": [],
        "state": "scheduled", "retired": False,
    }  # fmt: skip
    one = trace(read(make_artefact, [old]))
    (op,) = one.ops
    assert (op.seq, op.group, op.created_ns) == (7, "0", 1_700_000_000_000_000_000)
    assert not op.finished


def test_gloo_is_finished_when_retired_and_its_nameless_group_is_repaired(
    make_artefact: Any,
) -> None:
    """Gloo never leaves the state scheduled, and pg_config has one key ''."""
    done = entry(profiling_name="gloo:all_reduce", state="scheduled", retired=True)
    waits = entry(profiling_name="gloo:all_reduce", state="scheduled", retired=False, record_id=1)
    value = dump(done, waits)
    value["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}
    one = trace(read(make_artefact, value))
    assert [op.finished for op in one.ops] == [True, False]
    assert one.backend == "gloo"
    assert [(g.name, g.desc, g.ranks) for g in one.groups] == [("0", "default_pg", (0, 1))]


def test_nccl_retired_without_completed_is_a_timeout_not_a_finish(make_artefact: Any) -> None:
    """The same two fields mean the opposite on NCCL."""
    one = trace(read(make_artefact, dump(entry(state="scheduled", retired=True))))
    assert not one.ops[0].finished and one.ops[0].retired


def test_started_is_unknown_without_timing_and_known_with_it(make_artefact: Any) -> None:
    """Not started and started look alike unless somebody recorded start events."""
    plain = trace(read(make_artefact, dump(entry(), entry(state="scheduled", retired=False))))
    assert plain.ops[1].started is None
    timed = dump(entry(duration_ms=0.5), entry(state="scheduled", retired=False))
    assert trace(read(make_artefact, timed)).ops[1].started is False
    running = dump(entry(), entry(state="started", retired=False))
    assert trace(read(make_artefact, running)).ops[1].started is True


def test_a_send_and_a_receive_name_source_and_destination(make_artefact: Any) -> None:
    """``recv 1<-2`` is from 2 to 1."""
    sent = entry(profiling_name="nccl:send 0->1", is_p2p=True)
    got = entry(profiling_name="nccl:recv 1<-2", is_p2p=True)
    one = trace(read(make_artefact, dump(sent, got)))
    assert [op.peer for op in one.ops] == [(0, 1), (2, 1)]


def test_json_strings_and_zeros_mean_the_same_as_pickle_numbers_and_none(
    make_artefact: Any,
) -> None:
    """JSON writes pg_status as strings and unknown times as 0."""
    marks = {"last_enqueued_collective": "4", "last_started_collective": "-1",
             "last_completed_collective": "3"}  # fmt: skip
    value = dump(entry(time_discovered_completed_ns=0), pg_status={"0": marks})
    one = trace(read(make_artefact, json.dumps(value).encode(), "fr_trace_rank_1.json"))
    (status,) = one.status
    assert (status[1].enqueued, status[1].started, status[1].completed) == (4, -1, 3)
    assert one.ops[0].completed_ns is None


def test_a_dump_without_entries_still_tells_its_high_water_marks(make_artefact: Any) -> None:
    """JSON omits the key entries when there are none."""
    value = dump(pg_status={"0": {"last_enqueued_collective": 4}})
    del value["entries"]
    assert trace(read(make_artefact, json.dumps(value).encode(), "x_rank_1.json")).status


def test_ranks_are_never_evaluated(make_artefact: Any, tmp_path: Path) -> None:
    """The ranks of a group are a text: anything but numbers is ignored."""
    value = dump(entry())
    mark = tmp_path / "ran"
    value["pg_config"]["0"]["ranks"] = f"__import__('os').mkdir('{mark}') or [0, 1]"
    assert trace(read(make_artefact, value)).groups[0].ranks == ()
    assert not mark.exists()


def test_the_rank_comes_from_the_name_and_is_checked_against_the_groups(
    make_artefact: Any,
) -> None:
    """Two groups that share only rank 5 say whose dump it is, even against the name."""
    value = dump(entry())
    value["pg_config"] = {
        "1": {"name": "1", "desc": "tp", "ranks": "[4, 5]"},
        "2": {"name": "2", "desc": "dp", "ranks": "[1, 5, 9]"},
    }
    assert trace(read(make_artefact, value, "comm_lib_trace_rank_5")).rank == 5
    assert trace(read(make_artefact, value, "unnamed")).rank == 5
    parsed = read(make_artefact, value, "nccl_trace_rank_3")
    assert trace(parsed).rank == 5
    assert "its groups say rank 5" in str(parsed.errors[0])


@pytest.mark.parametrize(
    ("name", "rank", "host"),
    [
        ("nccl_trace_rank_3", 3, None),
        ("comm_lib_trace_rank_3", 3, None),
        ("_dump_3", 3, None),
        ("run/fr/nccl_trace_rank_12", 12, None),
        ("nccl_trace_rank_node07_40", 40, "node07"),
        ("node07_rank_40", 40, "node07"),
        ("my_prefix_3", 3, None),
    ],
)
def test_names_tell_the_rank(make_artefact: Any, name: str, rank: int, host: str | None) -> None:
    """Prefix plus rank, host and rank, NVRx's _dump_N."""
    value = dump(entry())
    value["pg_config"]["0"]["ranks"] = str(list(range(64)))
    one = trace(read(make_artefact, value, name))
    assert (one.rank, one.source.host) == (rank, host)


def test_a_dump_that_nothing_assigns_to_a_rank_is_not_guessed(make_artefact: Any) -> None:
    """No rank in the name and one flat group: say so, and what to do."""
    parsed = read(make_artefact, dump(entry()), "dump.pickle")
    assert not parsed.observations
    assert "rename it" in str(parsed.errors[0])


def test_a_generic_hook_beside_the_backend_does_not_count_twice(make_artefact: Any) -> None:
    """torch 2.14's hook records c10d:allreduce beside gloo:all_reduce."""
    native = entry(profiling_name="gloo:all_reduce")
    twin = entry(profiling_name="c10d:allreduce", record_id=1)
    sent = entry(profiling_name="c10d:send 0->1", record_id=2, is_p2p=True)
    one = trace(read(make_artefact, dump(native, twin, sent)))
    assert [op.op for op in one.ops] == ["all_reduce", "send"]


def test_malformed_entries_are_counted_not_fatal(make_artefact: Any) -> None:
    """One bad entry does not cost the others."""
    parsed = read(make_artefact, dump(entry(), {"profiling_name": 7}, 5, entry(record_id=3)))  # type: ignore[arg-type]
    assert len(trace(parsed).ops) == 2
    assert "2 entries are malformed" in str(parsed.errors[0])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"}" + b")" + b"\x85" * 2_000_000 + b"Ns.", id="deep"),
        pytest.param(b"}" + b")" + b"\x85q\x01" * 200_000 + b"Ns.", id="deep-memoized"),
        pytest.param(b"}" + b"K\x01" + b"2\x86" * 60 + b"Ns.", id="doubled"),
    ],
)
def test_a_key_that_would_crash_or_never_hash_is_refused(body: bytes) -> None:
    for data in (b"\x80\x02" + body, b"\x80\x02" + body[:-2]):
        with pytest.raises(Refused):
            load(data)


def test_ordinary_pairs_in_pairs_are_read() -> None:
    assert load(pickle.dumps({"a": (("0", "default_pg"), (1, (2, 3)))})).value
