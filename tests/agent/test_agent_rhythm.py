"""Thresholds follow the job's rhythm: no look at a healthy one, always in time at a stopped one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.progress.rhythm import FLOOR_S, STEADY_CAP_S, UNKNOWN_S, Rhythm


def lived(gaps, start=1000.0):
    rhythm, at = Rhythm(), start
    rhythm.moved(at)
    for gap in gaps:
        at += gap
        rhythm.moved(at)
    return rhythm, at


short = st.lists(st.floats(0.5, 1.1), min_size=60, max_size=120)


@given(short)
def test_a_steady_job_is_looked_at_within_the_bound_and_never_at_its_own_pace(gaps):
    rhythm, now = lived(gaps)
    assert rhythm.steady
    assert FLOOR_S <= rhythm.threshold(now) <= STEADY_CAP_S
    assert rhythm.threshold(now) > max(gaps)


@given(short, st.floats(3.0, 300.0))
def test_one_long_silence_among_many_short_ones_does_not_blunt_it(gaps, silence):
    rhythm, _ = lived([*gaps, silence, *gaps])
    assert rhythm.threshold(rhythm.last) <= STEADY_CAP_S
    assert abs(rhythm.longest - silence) < 1e-6


@given(st.lists(st.floats(3.0, 15.0), min_size=20, max_size=60))
@settings(max_examples=200)
def test_a_job_of_irregular_steps_is_looked_at_seldom(gaps):
    """Once known, a gap within the range that was seen thrice over is never a reason to look."""
    rhythm, at, looks = Rhythm(), 0.0, 0
    rhythm.moved(at)
    for gap in gaps:
        if gap > rhythm.threshold(at):
            looks += 1
            rhythm.was_resolved(at + gap, gap)
        at += gap
        rhythm.moved(at)
    assert looks <= 3


@given(st.lists(st.floats(0.1, 30.0), max_size=9))
def test_before_the_rhythm_is_known_it_waits_long(gaps):
    rhythm, now = lived(gaps)
    assert not rhythm.known
    assert rhythm.threshold(now) == UNKNOWN_S


@given(short, st.floats(1.0, 1800.0))
def test_the_jobs_own_timeout_is_always_preceded(gaps, timeout):
    for rhythm in (lived(gaps)[0], lived([])[0]):
        assert rhythm.threshold(rhythm.last, timeout) <= max(timeout / 2, 1.0)
        rhythm.was_resolved(rhythm.last, 500.0)
        rhythm.was_resolved(rhythm.last, 500.0)
        assert rhythm.threshold(rhythm.last, timeout) <= max(timeout * 0.8, 1.0)


@given(short, st.floats(6.0, 100.0))
def test_silences_that_ended_twice_are_not_looked_at_again(gaps, silence):
    rhythm, now = lived(gaps)
    rhythm.was_resolved(now, silence)
    assert rhythm.threshold(now) <= STEADY_CAP_S
    rhythm.was_resolved(now, silence)
    assert rhythm.threshold(now) > silence
    assert rhythm.threshold(now + 7200) <= STEADY_CAP_S, "and that is forgotten in time"


def test_time_that_goes_backwards_is_ignored():
    rhythm, now = lived([1.0, 1.0])
    rhythm.moved(now - 5)
    assert rhythm.last == now
    assert list(rhythm.gaps) == [1.0, 1.0]
