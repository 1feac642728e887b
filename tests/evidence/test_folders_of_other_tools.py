"""Folders that other hang detectors leave are read as they stand."""

from __future__ import annotations

import json
from pathlib import Path

from fabwatch.watchdog.evidence.reading import read


def sample(samples: Path, name: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes((samples / f"{name}.in").read_bytes())
    return target


def test_the_debug_server_s_periodic_dumps(tmp_path: Path, samples: Path) -> None:
    """One file for all ranks: a heading for each, then what its worker answered, or an error."""
    spy = (samples / "py_spy--pyspy_rank_0.txt.in").read_text()
    trace = (samples / "python_threads--faulthandler_rank_5.txt.in").read_text()
    (tmp_path / "pyspy_dump_20260905_151703.txt").write_text(
        "PARTIAL DATA: 2/3 workers responded\n\n"
        f"=== Rank 0: http://node1:25999 ===\n{spy}\n"
        f"=== Rank 1: http://node2:25999 ===\n{spy.replace('1384', '1399')}\n"
        "=== Rank 2: http://node3:25999 ===\nError: 500\n"
    )
    (tmp_path / "stacks_20260905_151703.txt").write_text(
        f"=== Rank 0: http://node1:25999 ===\n{trace}\n"
        f"=== Rank 1: http://node2:25999 ===\n{trace}\n"
    )
    one = read([tmp_path])
    by_file = {
        (s.source.path.split("_")[0], s.rank): s.pid for s in one.stacks if s.rank is not None
    }
    assert set(by_file) == {("pyspy", 0), ("pyspy", 1), ("stacks", 0), ("stacks", 1)}
    assert (by_file["pyspy", 0], by_file["pyspy", 1]) == (1384, 1399)
    main = next(s for s in one.stacks if s.rank == 1 and s.pid == 1399).main
    assert main is not None and main.line > len(spy.splitlines())


def test_ray_train_s_hang_detector(tmp_path: Path, samples: Path) -> None:
    """Four tools' folders; a rank that could not be dumped has a line that says why."""
    root = tmp_path / "hang_detector"
    sample(samples, "py_spy--pyspy_native_rank_0.txt", root / "stack_traces" / "rank_0.log")
    (root / "stack_traces" / "rank_1.log").write_text("no stack trace: timed out after 30 s\n")
    sample(
        samples,
        "nvidia_smi_query--nvidia-smi-q.txt",
        root / "nvidia_smi" / "node_10.0.0.7.log",
    )
    sample(
        samples, "flight_recorder--fr_trace_rank_0.json", root / "flight_recorder" / "rank_0.json"
    )
    (root / "flight_recorder" / "rank_1.json").write_text(
        json.dumps({"ray_train_dump_error": "timed out"})
    )
    raw = (samples / "ras--ras.json.in").read_text()
    stamp = raw.split('"timestamp": "')[1].split('"')[0]
    for n in (1, 2):
        path = root / "nccl_ras" / f"ncclras_2026-09-05-15-1{n}-00.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(raw.replace(stamp, f"2026-09-05 15:1{n}:00"))
    sample(samples, "ras--ras.txt", root / "nccl_ras" / "ncclras_report.txt")
    one = read([tmp_path])
    assert [(s.rank, s.native) for s in one.stacks] == [(0, True)]
    assert [t.rank for t in one.traces] == [0]
    assert len(one.gpus[0].gpus) == 2
    polls = sorted((r.source.snapshot, r.source.path) for r in one.ras)
    assert [n for n, path in polls if path.endswith(".json")] == [1, 2]
    said = " ".join(str(p) for p in one.problems)
    assert "rank_1.json" in said and "timed out" in said
    assert "parser failed" not in said


def test_sysom_s_and_xpu_timer_s_stacks(tmp_path: Path, samples: Path) -> None:
    """Names are rank and size of the job; the files say so themselves."""
    for tool, ending in (("sysom", "00003-00016.stackdata"), ("xpu", "00003-00008.stacktrace")):
        sample(samples, f"stack_bundles--{ending}", tmp_path / tool / ending)
        one = read([tmp_path / tool])
        assert {(s.rank, s.pid) for s in one.stacks} == {(3, 4711)}
        main = one.stacks[0].main
        assert main is not None and main.frames[0].function == "all_reduce"
        assert not one.unrecognised and not one.problems


def test_nvrx_s_trace_folders(tmp_path: Path, samples: Path) -> None:
    """``iter_N/_dump_R`` are flight-recorder dumps of rank R."""
    sample(samples, "flight_recorder--nccl_trace_rank_0", tmp_path / "iter_5" / "_dump_0")
    one = read([tmp_path])
    assert [t.rank for t in one.traces] == [0]
