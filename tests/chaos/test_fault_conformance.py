"""Every fault that this host allows takes hold and heals, whatever ends it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fabwatch.chaos import journal
from fabwatch.chaos.faults import find, load
from fabwatch.chaos.healing import recover
from fabwatch.chaos.injection import injected
from fabwatch.chaos.model import Limits, Refused, Target, Tier

EVERY_TIER = Limits(tiers=frozenset(range(1, 8)))

OPTIONS: dict[str, dict] = {}
"""Options of faults that need some, and those that make a test quick."""

ELSEWHERE = {
    "links": "needs a link of a test bed: tests of the test bed run it",
    "ranks": "needs a job launched for it: tests/chaos/test_faults_inside.py runs it",
}
"""Needs that another file's targets meet."""

WAYS = [
    pytest.param(fault.id, one.name, id=f"{fault.id}:{one.name}")
    for fault in load().values()
    for one in fault.ordered()
]


class Scene:
    """One mechanism with a target that suits it, planned."""

    def __init__(self, fault, mechanism, target, options, store, me):
        self.fault, self.name, self.target, self.options = fault, mechanism, target, options
        self.mechanism = find(fault).mechanism(mechanism)
        self.store, self.me = store, me

    def plan(self, limit_s=30.0):
        return find(self.fault).plan(
            self.target, self.options, mechanism=self.name, limit_s=limit_s, limits=EVERY_TIER
        )

    @property
    def kills(self):
        return self.mechanism.tier == Tier.IRREVERSIBLE

    def inject(self, limit_s=30.0):
        return injected(self.plan(limit_s), yes_break=self.me, store=self.store)

    def in_child(self, start, limit_s=30.0):
        return start(self.fault, self.name, self.target, self.options, limit_s)

    def state_of(self, name):
        for folder in (self.store.folder, self.store.folder / "closed"):
            if (folder / f"{name}.jsonl").exists():
                return journal.read(folder / f"{name}.jsonl").state
        raise AssertionError(f"no journal of {name}")

    def gone(self, name, sacrifice):
        """Whether it is measurably over and the victim works again (or was to die)."""
        seen = self.mechanism.reverted(self.state_of(name))
        assert seen.known is True, seen
        assert self.store.open_records() == []
        if self.target.victims and not self.kills:
            assert sacrifice.moves(), "the victim does not work again"
        return True


@pytest.fixture
def scene(request, store, me, sacrifice, tmp_path):
    fault, name = request.param
    mechanism = find(fault).mechanism(name)
    why = mechanism.missing() or ELSEWHERE.get(mechanism.needs, "")
    if why:
        pytest.skip(f"{fault} by {name}: {why}")
    victims = (sacrifice.victim,) if mechanism.needs == "victims" else ()
    folder = ""
    if mechanism.needs == "folder":
        (tmp_path / "disk").mkdir()
        folder = str(tmp_path / "disk")
    target = Target(victims=victims, folder=folder, world=4)
    return Scene(fault, name, target, OPTIONS.get(fault, {}), store, me)


def ways(function):
    """Run for every mechanism."""
    params = [pytest.param((p.values[0], p.values[1]), id=p.id) for p in WAYS]
    return pytest.mark.parametrize("scene", params, indirect=True)(function)


@ways
def test_it_takes_hold_and_heals_after_the_block(scene, sacrifice):
    with scene.inject() as one:
        assert one.measure().known is True, one.held
        if not scene.kills:
            seen = scene.mechanism.reverted(one.state)
            assert seen.known is False, f"while in force: {seen}"
    assert one.healed is not None and one.healed.known is True
    assert scene.gone(one.id, sacrifice)


@ways
@pytest.mark.slow
def test_it_heals_after_an_exception_in_the_block(scene, sacrifice):
    with pytest.raises(ZeroDivisionError), scene.inject() as one:
        1 / 0  # noqa: B018
    assert scene.gone(one.id, sacrifice)


@ways
@pytest.mark.slow
def test_it_heals_when_the_injector_is_killed(scene, sacrifice, inject_in_child, closed):
    child = scene.in_child(inject_in_child)
    child.kill()
    assert closed(child.id)
    assert scene.gone(child.id, sacrifice)


@ways
@pytest.mark.slow
def test_a_killed_guardian_is_replaced_and_the_fault_heals(scene, sacrifice, inject_in_child):
    child = scene.in_child(inject_in_child)
    os.kill(child.guardian, signal.SIGKILL)
    time.sleep(0.5)
    assert child.end()["healed"] is True
    assert scene.gone(child.id, sacrifice)


@ways
@pytest.mark.slow
def test_it_heals_at_its_time_limit(scene, sacrifice):
    with scene.inject(limit_s=2.0) as one:
        assert one.wait(30)
        assert one.healed is not None and one.healed.known is True
        assert scene.mechanism.reverted(one.state).known is True
    assert scene.gone(one.id, sacrifice)


@ways
@pytest.mark.slow
def test_it_can_be_injected_twice_in_a_row(scene, sacrifice):
    with scene.inject() as first:
        pass
    assert scene.gone(first.id, sacrifice)
    if scene.kills:
        with pytest.raises(Refused, match="gone"):
            scene.plan()
        return
    with scene.inject() as second:
        assert second.measure().known is True
    assert scene.gone(second.id, sacrifice)


@ways
@pytest.mark.slow
def test_it_ends_in_order_when_the_target_is_gone(scene, sacrifice):
    if not scene.target.victims:
        pytest.skip("it hits no process")
    with scene.inject() as one:
        assert one.measure().known is True
        sacrifice.child.send_signal(signal.SIGKILL)
        sacrifice.child.wait()
    assert one.healed is not None and one.healed.known is True
    assert scene.store.open_records() == []


@ways
@pytest.mark.slow
def test_a_torn_journal_whose_injector_and_guardian_were_killed_is_recovered(
    scene, sacrifice, inject_in_child
):
    child = scene.in_child(inject_in_child)
    os.kill(child.child.pid, signal.SIGSTOP)  # it would replace the guardian
    os.kill(child.guardian, signal.SIGKILL)
    child.kill()
    path = scene.store.path(child.id)
    with path.open("ab") as file:
        file.write(b'{"do":"reverted","at":17')
    assert [record.id for record in scene.store.open_records()] == [child.id]
    healed = recover(scene.store)
    assert [(record.id, seen.known) for record, seen in healed] == [(child.id, True)]
    assert scene.gone(child.id, sacrifice)
