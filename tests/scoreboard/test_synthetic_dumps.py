"""On generated dumps the culprit is named whenever it can be, and nobody else ever."""

from __future__ import annotations

import importlib.util
import sys
from itertools import product
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


synthetic = tool("synthetic")
FAULTS = synthetic.generator().FAULTS


def not_right(results: list) -> list[str]:
    return [f"{r.mark}: {r.shot} {r.told} {r.answer}" for r in results if r.mark != "right"]


@pytest.mark.parametrize(
    "layout, tp, culprit, conditions",
    [
        ("flat", 16, 0, synthetic.CONDITIONS),
        ("2d", 2, 7, ("all files", "culprit's absent", "low half")),
        ("2d", 8, 9, ("all files", "culprit's absent", "any half")),
    ],
)
def test_one_culprit_of_a_layout_is_judged_right(layout, tp, culprit, conditions):
    results = synthetic.run(synthetic.shots([(layout, tp)], [culprit], conditions))
    assert len(results) == len(FAULTS) * len(conditions)
    assert not_right(results) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout, tp", synthetic.LAYOUTS)
def test_every_fault_of_every_rank_is_judged_right_under_every_condition(layout, tp):
    results = synthetic.run(synthetic.shots([(layout, tp)]))
    assert len(results) == len(FAULTS) * synthetic.RANKS * len(synthetic.CONDITIONS)
    assert not_right(results) == []


def blamed(calls: dict[int, str]) -> set[int]:
    """Culprits by the table of a finished inquiry: the minority, in a tie everybody."""
    sides = {value: {r for r, v in calls.items() if v == value} for value in calls.values()}
    most = max(map(len, sides.values()))
    largest = [side for side in sides.values() if len(side) == most]
    return set(calls) if len(largest) > 1 else set(calls) - largest[0]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_what_is_called_exact_holds_however_the_hidden_members_called(size):
    """The written definition, checked by going through all that the hidden ones may have done."""
    for mask in product([False, True], repeat=size):
        seen = {r for r, there in enumerate(mask) if there}
        hidden = [r for r in range(size) if r not in seen]
        told = synthetic.truth("size", 0, range(size), seen)
        if 0 not in seen or len(seen) < 2:
            assert told.kind != "exact"
            continue
        possible = [
            blamed(
                {r: "odd" if r == 0 else "usual" for r in seen}
                | dict(zip(hidden, calls, strict=True))
            )
            for calls in product(["odd", "usual"], repeat=len(hidden))
        ]
        always = set.intersection(*possible)
        if told.kind == "exact":
            assert set(told.culprits) <= always
        else:
            assert told.culprits == () and told.stated
            assert not always & {0}, "whoever is to blame in every case has to be named"


def test_naming_an_innocent_claiming_too_much_and_asking_nothing_are_not_right():
    exact = synthetic.Truth("exact", (3,))
    lead = synthetic.Truth("lead", (3,), (3,))
    blind = synthetic.Truth("blind", (), (3, 4))
    ask = "flight-recorder dump of ranks 3-4: nothing is known of them"
    a = synthetic.Answer
    assert synthetic.grade(exact, a((3,), (3,), True), True) == "right"
    assert synthetic.grade(exact, a((3, 4), (3, 4), True), True) == "wrong"
    assert synthetic.grade(exact, a((3,), (3,), False), True) == "short"
    assert synthetic.grade(exact, a((), (), False), True) == "short"
    assert synthetic.grade(lead, a((3,), (3,), True, (ask,)), True) == "wrong"
    assert synthetic.grade(lead, a((3,), (3,), False), True) == "short"
    assert synthetic.grade(lead, a((3,), (3,), False, (ask,)), True) == "right"
    assert synthetic.grade(blind, a((3,), (3,), False, (ask,)), True) == "wrong"
    assert synthetic.grade(blind, a((), (3, 4), False, (ask,)), True) == "right"
    assert synthetic.grade(blind, a((), (3, 4), False, (ask.replace("3-4", "3"),)), True) == "short"


def test_torchfrtrace_is_asked_the_same_and_may_be_wrong():
    pytest.importorskip("torch")
    shots = list(synthetic.shots([("flat", 16)], [0], ["rank 0 first"]))
    marks = {r.shot.fault: r.torch for r in synthetic.run(shots, beside=True)}
    assert set(marks) == set(FAULTS)
    assert marks["missing"] == "right", "it finds a rank that never came"
    assert marks["size"] == "wrong", "it compares with whichever file it read first"
