"""Inputs that fuzzing started from or stumbled over: none may do harm again."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FUZZ = ROOT / "tests" / "fuzz"


def load() -> ModuleType:
    """tools/fuzz.py as a module."""
    spec = importlib.util.spec_from_file_location("fabwatch_fuzz_tool", ROOT / "tools" / "fuzz.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = load()


def test_every_parser_is_a_target_with_seeds() -> None:
    """A parser without a seed would be fuzzed from nothing."""
    have = {path.name for path in FUZZ.iterdir() if any(path.iterdir())}
    assert have == set(TOOL.modules())


def test_seeds_and_crashers_stay_small() -> None:
    """They are replayed at every run of the tests."""
    assert all(path.stat().st_size <= 16384 for path in FUZZ.rglob("*") if path.is_file())


@pytest.mark.parametrize("module", TOOL.modules())
def test_kept_inputs_do_no_harm(module: str) -> None:
    run = TOOL.target(module)
    for data in TOOL.seeds(module):
        run(data)


def test_a_target_sees_what_a_parser_must_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the parser is a finding, and so is an answer of another type."""
    from fabwatch.watchdog.evidence.parsers import rdma

    monkeypatch.setattr(rdma, "parse", lambda artefact: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        TOOL.target("rdma")(b"x")
    monkeypatch.setattr(rdma, "parse", lambda artefact: None)
    with pytest.raises(AssertionError):
        TOOL.target("rdma")(b"x")


@pytest.mark.slow
def test_the_tool_runs_without_atheris_and_says_what_it_did() -> None:
    command = [sys.executable, str(ROOT / "tools" / "fuzz.py"), "--engine", "hypothesis"]
    command += ["--seconds", "1", "--jobs", "2", "rdma", "sections"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no crash" in done.stdout and "rdma: nothing found" in done.stdout
