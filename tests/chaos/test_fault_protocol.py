"""The protocol of faults: options, the choice of a mechanism, limits."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fabwatch.chaos.faults import find, load
from fabwatch.chaos.model import Fault, Limits, Param, Refused, Target, Tier, Values, Victim


@pytest.fixture
def sleeper():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield child
    child.kill()
    child.wait()


def test_every_fault_says_what_it_is_and_how_it_heals():
    for fault in load().values():
        assert fault.says and fault.mechanisms
        assert fault.id == fault.id.lower() and "." in fault.id
        for one in fault.mechanisms:
            assert one.says and isinstance(one.tier, Tier)
            assert isinstance(one.missing(), str)


def test_an_unknown_fault_names_the_nearest_ones():
    with pytest.raises(Refused, match=r"rank\.stop"):
        find("rank.stp")


def test_options_are_read_as_the_kind_of_their_default():
    fault = Fault("x.y", "-", (), (Param("rate", 1.5, "r"), Param("name", None, "n")))
    assert fault.options({"rate": "2", "name": "7"}).plain() == {"rate": 2.0, "name": "7"}
    with pytest.raises(Refused, match="rate=fast"):
        fault.options({"rate": "fast", "name": "a"})
    with pytest.raises(Refused, match="name must be given"):
        fault.options({})
    with pytest.raises(Refused, match="no option 'rat'"):
        fault.options({"rat": "1", "name": "a"})


def test_a_plan_touches_nothing_and_names_its_undo(sleeper):
    target = Target(victims=(Victim.of(sleeper.pid, 1),), world=4)
    plan = find("rank.stop").plan(target)
    assert plan.steps.does == (f"kill -STOP {sleeper.pid}",)
    assert plan.steps.undoes == (f"kill -CONT {sleeper.pid}",)
    assert plan.exceeds == () and plan.as_json()["tier"] == "journal"
    assert sleeper.poll() is None


def test_a_plan_says_which_limits_it_exceeds(sleeper):
    hit = (Victim.of(sleeper.pid, 0), Victim.of(sleeper.pid, 1))
    plan = find("rank.stop").plan(Target(victims=hit, world=2))
    assert len(plan.exceeds) == 2
    assert find("rank.stop").plan(
        Target(victims=hit, world=2), limits=Limits(ranks=2, share=1.0)
    ).exceeds == ()  # fmt: skip


def test_a_target_that_is_not_there_is_refused(sleeper):
    with pytest.raises(Refused, match="needs processes"):
        find("rank.stop").plan(Target())
    gone = Victim(sleeper.pid, 1)
    with pytest.raises(Refused, match="gone"):
        find("rank.stop").plan(Target(victims=(gone,)))
    with pytest.raises(Refused, match="time limit"):
        find("rank.stop").plan(Target(victims=(Victim.of(sleeper.pid),)), limit_s=0)


def test_values_refuse_what_has_the_wrong_kind():
    values = Values({"a": "x", "b": True, "c": 1})
    assert values.whole("c") == 1 and values.number("c") == 1.0 and values.flag("b")
    for call in (lambda: values.whole("b"), lambda: values.number("a"), lambda: values.text("d")):
        with pytest.raises(Refused):
            call()
