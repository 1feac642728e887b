"""Progress of whole jobs, told with synthetic clocks."""

from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.progress.monitor import Monitor
from fabwatch.watchdog.progress.pages import PageView, view_of
from fabwatch.watchdog.progress.sampling import Sample

TICK = 0.5


@dataclass
class Fake:
    """One rank as the outside sees it."""

    rank: int
    done: int = 0
    waiting: bool = False
    works: bool = True
    state: str = "S"
    writes: bool = True  # the probe's thread runs
    exiting: bool = False
    paged: bool = True
    run_ns: int = 0
    page: PageView | None = None
    frozen: bool | None = None


class World:
    """A job of fakes and the monitor that looks at it."""

    def __init__(self, ranks=4, stall_after=None, paged=True, start=1000.0):
        self.now = start
        self.fakes = [Fake(r, paged=paged) for r in range(ranks)]
        self.monitor = Monitor(stall_after)
        self.suspended = False
        self.launcher_stopped = False

    def look(self):
        samples = []
        for f in self.fakes:
            if f.works and f.state != "T":
                f.run_ns += int(50e6 * TICK)
            if f.paged and f.writes and f.state != "T" and (f.page is None or self.whole()):
                f.page = PageView(
                    f.rank + 100, f.rank, len(self.fakes), f.rank, 0,
                    (("gloo:0", f.done + f.waiting, -1, f.done),), self.now, 1.0, f.exiting,
                )  # fmt: skip
            samples.append(
                Sample(f.rank, f.rank + 100, f.page, f.run_ns, f.run_ns, 0, f.state, f.frozen)
            )
        self.monitor.observe(self.now, samples, suspended=self.launcher_stopped)
        return self.monitor.judge(self.now)

    def whole(self):
        return abs(self.now - round(self.now)) < 0.01

    def pass_(self, seconds, each=None):
        """Let time pass; the first judgement, with the seconds until it came, or None."""
        began, end = self.now, self.now + seconds
        while self.now < end - 1e-9:
            self.now += TICK
            if each:
                each(self)
            found = self.look()
            if found:
                return found, self.now - began
        return None

    def step(self):
        for f in self.fakes:
            f.done += 1

    def steady(self, seconds=30):
        return self.pass_(seconds, World.step)


def stop_all(world, *, culprit=0):
    """The culprit sleeps, everybody else waits in a collective."""
    for f in world.fakes:
        f.works = False
        f.waiting = f.rank != culprit


def test_a_steady_job_is_never_judged():
    assert World().steady(600) is None


def test_a_stop_after_thirty_steady_seconds_is_seen_within_six_seconds():
    world = World()
    assert world.steady(30) is None
    stop_all(world)
    found, after = world.pass_(30)
    assert found.kind == "silent"
    assert after <= 6.0
    assert found.phase == "steady"
    assert found.still == (0, 1, 2, 3)


@given(st.lists(st.sampled_from([0.5, 1.0]), min_size=40, max_size=60), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_whatever_the_steady_pace_a_stop_is_seen_in_time_and_the_pace_is_not(gaps, culprit):
    world = World()
    for gap in gaps:
        world.step()
        assert world.pass_(gap) is None
    if world.now - 1000.0 < 30:
        assert world.steady(30) is None
    stop_all(world, culprit=culprit)
    found = world.pass_(12)
    assert found is not None
    assert found[1] <= 7.0


@given(st.lists(st.floats(3, 15), min_size=3, max_size=25), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_irregular_steps_give_few_captures_and_no_limit_is_passed(gaps, seed):
    """All ranks compute for 3 to 15 s and meet; now and then the others wait for one."""
    world, looks, inside = World(), 0, False
    for index, gap in enumerate(gaps):
        for f in world.fakes:
            f.waiting = f.rank != (seed + index) % 4
            f.works = not f.waiting
        end = world.now + gap
        while world.now < end:
            found = world.pass_(TICK)
            if found and not inside:
                inside, looks = True, looks + 1
            assert world.monitor.waited(world.now) < world.monitor.limit(world.now)
        if inside:
            world.monitor.counts.was_resolved(world.now, gap)
        inside = False
        for f in world.fakes:
            f.waiting = False
        world.step()
    assert looks <= 4


def test_a_minute_of_compute_without_collectives_is_no_stall():
    world = World()
    world.steady(30)
    assert world.pass_(120) is None, "everybody works, nobody waits"


def test_one_rank_evaluating_while_others_wait_is_looked_at_but_not_a_failure_for_thirty_seconds():
    world = World()
    world.steady(35)
    for f in world.fakes[1:]:
        f.waiting, f.works = True, False
    found, _ = world.pass_(30)
    assert found.moving == (0,)
    world.pass_(1)
    while world.monitor.waited(world.now) < 30:
        assert world.monitor.waited(world.now) < world.monitor.limit(world.now)
        world.now += 1
    assert world.monitor.limit(world.now) == 60.0


def test_forty_seconds_of_compile_first_are_not_even_looked_at():
    world = World()
    for f in world.fakes[1:]:
        f.waiting, f.works = True, False
    world.fakes[0].done = 0
    assert world.pass_(40) is None
    assert world.monitor.phase == "first-step"


def test_a_long_compile_is_looked_at_late_and_its_limit_is_generous_while_somebody_works():
    world = World()
    for f in world.fakes[1:]:
        f.waiting, f.works = True, False
    _, after = world.pass_(200)
    assert 55 <= after <= 65
    assert world.monitor.limit(world.now) >= 300
    world.fakes[0].works = False
    world.now += 5
    assert world.monitor.limit(world.now) == 60.0


def test_a_stopped_rank_is_seen_at_once_in_any_phase():
    for seconds in (2, 40):
        world = World()
        world.steady(seconds)
        world.fakes[2].state = "T"
        found, after = world.pass_(10, World.step)
        assert found.kind == "stopped"
        assert "rank 2" in found.why
        assert after <= 2.5


def test_a_job_that_its_user_stopped_is_not_stalled_and_not_after_it_goes_on():
    world = World()
    world.steady(30)
    world.launcher_stopped = True
    for f in world.fakes:
        f.state = "T"
    assert world.pass_(300) is None
    world.launcher_stopped = False
    for f in world.fakes:
        f.state = "S"
    assert world.steady(30) is None
    assert world.monitor.longest_wait < 10


def test_a_frozen_cgroup_is_positive_evidence():
    world = World()
    world.steady(5)
    f = world.fakes[1]
    f.works, f.writes, f.frozen = False, False, True
    found, after = world.pass_(10, World.step)
    assert found.kind == "stopped"
    assert after <= 3.0


def test_a_rank_that_runs_no_python_thread_is_seen_while_others_wait_for_it():
    world = World()
    world.steady(40)
    stop_all(world, culprit=3)
    world.fakes[3].works, world.fakes[3].writes, world.fakes[3].state = True, False, "R"
    found, after = world.pass_(10)
    assert found.kind in ("stale", "silent")
    assert after <= 5.5


def test_stale_pages_of_everybody_at_once_mean_a_busy_machine():
    world = World()
    world.steady(5)
    for f in world.fakes:
        f.writes = False
    assert world.pass_(20) is None


def test_a_rank_in_teardown_while_another_waits_is_seen():
    world = World()
    world.steady(5)
    for f in world.fakes:
        f.waiting, f.works = True, False
    world.fakes[0].waiting, world.fakes[0].exiting = False, True
    found, after = world.pass_(20)
    assert found.kind == "left"
    assert found.phase == "teardown"
    assert after <= 5


def test_a_rank_that_ended_with_zero_while_others_compute_is_nothing():
    world = World()
    world.steady(30)
    world.fakes.pop()
    world.monitor.left[3] = world.now
    assert world.pass_(60) is None


def test_everybody_waiting_for_storage_is_seen_although_no_operation_is_open():
    world = World()
    world.steady(30)
    for f in world.fakes:
        f.works = False
    found, after = world.pass_(30)
    assert found.kind == "idle"
    assert after <= 7


def test_without_pages_stillness_of_cpu_time_counts():
    world = World(paged=False)
    assert world.pass_(60) is None
    for f in world.fakes[1:]:
        f.works = False
    found, after = world.pass_(30)
    assert found.kind == "idle"
    assert after <= 7
    assert found.moving == (0,)


def test_without_pages_a_start_up_is_given_time():
    world = World(paged=False)
    for f in world.fakes:
        f.works = False
    assert world.pass_(50) is None
    assert world.pass_(30)[0].phase == "start"


def test_a_job_of_sends_and_receives_only_is_judged_by_its_work():
    """Gloo counts no send and no receive as open: the counters of such a job stand still."""
    world = World()
    world.step()
    assert world.pass_(300) is None
    for f in world.fakes:
        f.works = False
    found, after = world.pass_(30)
    assert found.kind == "idle"
    assert after <= 7


def test_a_rank_stuck_alone_is_seen_while_the_others_go_on():
    world = World()
    world.steady(60)
    stuck = world.fakes[1]
    stuck.waiting, stuck.works = True, False

    def others(w):
        for f in w.fakes:
            f.done += f is not stuck

    found, after = world.pass_(300, others)
    assert found.kind == "partly"
    assert 55 <= after <= 70


def test_a_threshold_that_the_user_gave_is_kept_to():
    for given_s in (2.0, 20.0):
        world = World(stall_after=given_s)
        world.steady(30)
        stop_all(world)
        _, after = world.pass_(60)
        assert given_s <= after <= given_s + 2.0


def test_a_short_timeout_is_preceded_by_a_capture():
    world = World()
    world.monitor.timeout = 10.0
    world.pass_(3)
    stop_all(world)
    found, after = world.pass_(30)
    assert found.trigger == "timeout-near"
    assert after <= 7.0


def test_a_wait_that_ended_raises_the_limit_for_the_next():
    world = World()
    world.steady(30)
    world.pass_(25, lambda w: None)
    world.step()
    world.look()
    world.pass_(1.5)
    assert world.monitor.limit(world.now) >= 3 * 25


def test_after_a_restart_the_rhythm_is_learnt_anew():
    world = World()
    world.steady(40)
    world.monitor.restarted(world.now)
    assert world.monitor.phase == "start"
    stop_all(world)
    assert world.pass_(30) is None


def test_a_page_with_the_wrong_types_counts_as_absent():
    page = view_of(7, 5_000_000_000, {"rank": "x", "status": {"a": 3, "b": {"enqueued": "4"}}})
    assert page.rank is None
    assert page.counters == (("b", 4, -1, -1),)
    assert not page.exiting
    assert page.ticked == 5.0
    assert not replace(page, counters=()).pending
