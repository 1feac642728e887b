"""Nothing is broken without leave, beyond the limits, or over something in force."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from fabwatch.chaos import allowed
from fabwatch.chaos.faults import find
from fabwatch.chaos.faults._processes import state_letter
from fabwatch.chaos.injection import injected
from fabwatch.chaos.model import Refused, Target
from fabwatch.chaos.selection import draw, select


def stop(sacrifice, **more):
    return find("rank.stop").plan(Target(victims=(sacrifice.victim,), world=4), **more)


def fabwatch(*words):
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", "chaos", *words], capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip


def test_without_leave_nothing_is_touched(sacrifice, store):
    with pytest.raises(Refused, match="--yes-break"), injected(stop(sacrifice), store=store):
        pass
    assert sacrifice.moves() and store.records() == []
    assert "refused" in (store.folder / "audit.jsonl").read_text()


def test_a_pattern_that_names_no_host_allows_nothing(me):
    for pattern in ("*", "?*", "", "**"):
        with pytest.raises(Refused, match="names no host"):
            allowed.check([pattern])
    assert allowed.check(me) == me[0]


def test_the_configuration_may_name_the_host(tmp_path, me):
    with pytest.raises(Refused, match="nobody said"):
        allowed.check([], tmp_path)
    (tmp_path / "fabwatch.toml").write_text(f'[chaos]\nallowed-hosts = ["{me[0]}"]\n')
    assert allowed.check([], tmp_path) == me[0]
    (tmp_path / "fabwatch.toml").write_text("[chaos]\nallowed-hosts = 7\n")
    with pytest.raises(Refused, match=r"fabwatch\.toml"):
        allowed.check([], tmp_path)


def test_a_blast_radius_beyond_the_limits_is_refused(sacrifice, store, me):
    plan = find("rank.stop").plan(Target(victims=(sacrifice.victim,), world=1))
    with pytest.raises(Refused, match="blast radius"), injected(plan, yes_break=me, store=store):
        pass
    assert sacrifice.moves()


def test_nothing_starts_over_a_fault_in_force(sacrifice, store, me):
    with injected(stop(sacrifice), yes_break=me, store=store) as one:
        other = find("host.cpu-hog").plan(Target())
        with pytest.raises(Refused, match=one.id), injected(other, yes_break=me, store=store):
            pass
        with injected(other, yes_break=me, store=store, beside=[one.id]) as two:
            assert two.held.known is True
    assert sacrifice.moves()


def test_what_a_killed_injector_left_is_healed_before_the_next_run(
    sacrifice, store, me, inject_in_child
):
    target = Target(victims=(sacrifice.victim,), world=4)
    child = inject_in_child("rank.stop", "sigstop", target, {})
    os.kill(child.child.pid, signal.SIGSTOP)
    os.kill(child.guardian, signal.SIGKILL)
    child.kill()
    assert state_letter(sacrifice.victim) == "T"
    with pytest.raises(Refused, match="stopped already"):
        stop(sacrifice)  # a plan heals nothing
    plan = find("host.cpu-hog").plan(Target())
    with injected(plan, yes_break=me, store=store) as one:
        assert one.held.known is True and sacrifice.moves()
    assert store.open_records() == []


def test_chaos_never_hits_what_it_depends_on():
    with pytest.raises(Refused, match="depends on it"):
        select(pids=[os.getpid()])
    with pytest.raises(Refused, match="depends on it"):
        select(pids=[1])


def test_the_lot_is_the_same_for_the_same_seed_and_spares_rank_0():
    assert draw(range(8), 2, 7) == draw(range(8), 2, 7)
    drawn = {one for seed in range(60) for one in draw(range(4), 1, seed)}
    assert drawn == {1, 2, 3}
    assert draw([0], 1, 3) == [0]


def test_the_command_plans_injects_tells_and_heals(sacrifice, store, me):
    pid = str(sacrifice.child.pid)
    made = fabwatch("plan", "rank.stop", "--pid", pid, "--json")
    assert made.returncode == 0 and json.loads(made.stdout)["undoes"] == [f"kill -CONT {pid}"]
    assert sacrifice.moves() and store.records() == []
    refused = fabwatch("inject", "rank.stop", "--pid", pid, "--for", "1s")
    assert refused.returncode == 1 and "--yes-break" in refused.stderr
    done = fabwatch("inject", "rank.stop", "--pid", pid, "--for", "1s", "--yes-break", *me)
    assert done.returncode == 0 and "took hold, and is gone" in done.stderr
    assert sacrifice.moves()
    assert fabwatch("plan", "rank.stpo").returncode == 2
    assert fabwatch("plan", "rank.stop").returncode == 1


def test_the_command_shows_and_reverts_what_was_left_behind(sacrifice, store, inject_in_child):
    target = Target(victims=(sacrifice.victim,), world=4)
    child = inject_in_child("rank.stop", "sigstop", target, {})
    os.kill(child.child.pid, signal.SIGSTOP)
    os.kill(child.guardian, signal.SIGKILL)
    child.kill()
    shown = fabwatch("status")
    assert child.id in shown.stdout and "LEFT BEHIND" in shown.stdout
    assert fabwatch("revert", "f-unknown").returncode == 1
    healed = fabwatch("revert", "--all", "--json")
    assert healed.returncode == 0 and json.loads(healed.stdout)[0]["id"] == child.id
    assert sacrifice.moves() and "nothing is in force" in fabwatch("status").stdout
