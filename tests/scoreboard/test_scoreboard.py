"""The matcher's score on labelled incidents does not fall, and does not hang on particulars."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
INCIDENTS = ROOT / "tests" / "incidents"
FLOOR = json.loads((Path(__file__).parent / "floor.json").read_text())


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


scoreboard = tool("scoreboard")
perturb = tool("perturb")
CASES = list(scoreboard.cases(INCIDENTS))


@pytest.fixture(scope="module")
def boards() -> dict[str, list[object]]:
    return {name: list(scoreboard.score(scoreboard.cases(ROOT / "tests" / name))) for name in FLOOR}


@pytest.fixture(scope="module")
def scores(boards: dict[str, list[object]]) -> list[object]:
    return boards["incidents"]


def test_every_incident_has_a_label_and_evidence() -> None:
    assert len(CASES) >= 58
    for case in CASES:
        assert scoreboard.evidence(case), case.name
        assert case.right or case.expected in scoreboard.UNDECIDED


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FLOOR))
def test_the_score_does_not_fall(boards: dict[str, list[object]], name: str) -> None:
    """Raise floor.json when the score has risen; never lower it."""
    found, floor = scoreboard.summary(boards[name]), FLOOR[name]
    assert found["right"] >= floor["right"]
    assert found["in_three"] >= floor["in_three"]
    assert found["left_open"] >= floor["left_open"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FLOOR))
def test_confident_wrong_answers_do_not_become_more(
    boards: dict[str, list[object]], name: str
) -> None:
    found = scoreboard.summary(boards[name])
    assert found["wrong_confident"] <= FLOOR[name]["wrong_confident"], found["confusions"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_the_score_stays_when_all_particulars_change(scores: list[object], seed: int) -> None:
    """Hosts, addresses, pids, sizes, sequence numbers and paths prove nothing."""
    before = {one.name: (one.result, one.top[:1]) for one in scores}  # type: ignore[attr-defined]
    after = {one.name: (one.result, one.top[:1]) for one in scoreboard.score(CASES, seed)}
    assert after == before


def test_changes_are_consistent_and_leave_nothing_as_it_was() -> None:
    text = (
        "node-7:4001:4002 [0] NCCL INFO Bootstrap : Using eth0:10.1.2.3<0>\n"
        "node-7:4001:4003 [0] NCCL INFO to node-8 10.1.2.4 comm 0x7f2d5c001060\n"
        "[Rank 1] WorkNCCL(SeqNum=41, NumelIn=512) last completed work: 40\n"
    )
    once = perturb.changed(text, {"node-7", "node-8"}, perturb.Changes("a"))
    assert once == perturb.changed(text, {"node-7", "node-8"}, perturb.Changes("a"))
    assert once != perturb.changed(text, {"node-7", "node-8"}, perturb.Changes("b"))
    for old in ("node-7", "node-8", "10.1.2.3", "0x7f2d5c001060", "SeqNum=41", "NumelIn=512"):
        assert old not in once
    lines = once.splitlines()
    assert lines[0].split(":")[:2] == lines[1].split(":")[:2], "one host and one pid stay one"
    seq, done = int(once.split("SeqNum=")[1].split(",")[0]), int(once.split("work: ")[1])
    assert seq - done == 1


def test_the_label_is_no_evidence(tmp_path: Path) -> None:
    case = tmp_path / "one"
    case.mkdir()
    (case / "truth.json").write_text('{"cause_id": "x", "acceptable_cause_ids": ["y"]}')
    (case / "train.log").write_text("step 1\n")
    (found,) = scoreboard.cases(tmp_path)
    assert found.right == ("x", "y")
    assert [p.name for p in scoreboard.evidence(found)] == ["train.log"]


def test_an_abstention_is_right_exactly_when_it_is_asked_for() -> None:
    from fabwatch.signatures.verdict import Culprits, Verdict

    nobody = Verdict(outcome="cannot-tell", symptom="hang", fabric="undecided", culprits=Culprits())
    named = scoreboard.Case("a", Path(), "x", ("x",), "host", "name-the-cause")
    open_ = scoreboard.Case("a", Path(), "x", (), "none", "insufficient-evidence")
    assert scoreboard.judge(named, nobody).result == "abstained"
    assert scoreboard.judge(open_, nobody).result == "right"
