"""Real captures and the synthetic generator: the culprits that were injected, and nobody else."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.reading import read

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = Path(os.environ.get("FABWATCH_EVIDENCE", str(ROOT.parent / "shared" / "evidence")))
GENERATOR = ROOT / "tests" / "synthetic" / "gen_fr.py"
needs_evidence = pytest.mark.skipif(
    not EVIDENCE.is_dir(),
    reason="the recorded captures are not in the repository; FABWATCH_EVIDENCE names their folder",
)


def blamed(analysis):
    return tuple(sorted({r for root in analysis.hang.roots for r in root.ranks}))


@needs_evidence
@pytest.mark.parametrize("case", ["gpu_error_2nd", "lock_gil_1st"])
def test_both_faulty_ranks_of_sixteen_and_no_innocent(case):
    folder = EVIDENCE / "nvrx-fr" / case
    text = (folder / "fault_injection.log").read_text().splitlines()[0]
    truth = tuple(json.loads(text.split(":", 1)[1]))
    assert blamed(analyse(read([str(folder)]))) == truth


@needs_evidence
@pytest.mark.parametrize(
    "case, kind",
    [
        ("case01", "host-stall"),
        ("case02", "process-stopped"),
        ("case04", "deadlock"),
        ("case05", None),
        ("case06", "process-dead"),
        ("case07", "in-collective"),
    ],
)
def test_two_gpu_captures_name_the_injected_culprits(case, kind):
    folder = EVIDENCE / "nccl-h200"
    truth = json.loads((folder / "truth.json").read_text())[case]
    analysis = analyse(read([str(folder / case)]))
    assert blamed(analysis) == tuple(truth["culprit_ranks"] or ())
    assert [r.kind for r in analysis.hang.roots] == ([kind] if kind else [])
    assert kind != "in-collective" or analysis.asks


def generator():
    spec = importlib.util.spec_from_file_location("gen_fr", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def dumps(tmp_path, layout, fault, culprit, lost=()):
    gen = generator()
    made = gen.Plan(16, 60, layout, 4, fault, culprit, 2)
    for rank in range(16):
        if rank not in lost:
            data = pickle.dumps(gen.build(rank, made), protocol=2)
            (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data)
    return analyse(read([str(tmp_path)]))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["flat", "2d"])
@pytest.mark.parametrize("fault", ["missing", "size", "dtype", "type", "state"])
@pytest.mark.parametrize("culprit", range(16))
def test_synthetic_faults_name_exactly_the_culprit(tmp_path, layout, fault, culprit):
    assert blamed(dumps(tmp_path, layout, fault, culprit)) == (culprit,)


@pytest.mark.parametrize("layout", ["flat", "2d"])
@pytest.mark.parametrize("fault", ["missing", "type"])
@pytest.mark.parametrize("culprit", [0, 7])
def test_a_culprit_whose_file_is_lost_is_still_named(tmp_path, layout, fault, culprit):
    analysis = dumps(tmp_path, layout, fault, culprit, lost=(culprit,))
    assert blamed(analysis) == (culprit,)
    assert not any(root.sure for root in analysis.hang.roots)


@pytest.mark.parametrize("fault", ["missing", "size"])
def test_half_of_the_files_without_the_culprits_is_undecided_and_asks_for_them(tmp_path, fault):
    analysis = dumps(tmp_path, "flat", fault, 4, lost=range(0, 16, 2))
    assert blamed(analysis) == ()
    assert any("rank" in ask.what and "0, 2, 4" in ask.what for ask in analysis.asks)


@pytest.mark.parametrize("layout", ["flat", "2d"])
def test_synthetic_health_has_no_root(tmp_path, layout):
    analysis = dumps(tmp_path, layout, "none", 0)
    assert analysis.hang.roots == () and analysis.hang.waiting == ()
