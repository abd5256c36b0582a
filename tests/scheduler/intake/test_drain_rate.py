"""The rate at which requests leave, learned from past departures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.intake.drain_rate import DrainRate


def steady(gap: float, departures: int = 200) -> tuple[DrainRate, float]:
    rate = DrainRate()
    rate.resume(0.0)
    for number in range(1, departures + 1):
        rate.departed(number * gap)
    return rate, departures * gap


@given(
    gaps=st.lists(st.floats(0, 1e7), max_size=20),
    ahead=st.integers(0, 10_000),
    silence=st.floats(0, 1e7),
)
def test_the_wait_is_a_whole_number_of_seconds_within_bounds(
    gaps: list[float], ahead: int, silence: float
) -> None:
    """As a Retry-After header requires, and never longer than a client would wait."""
    rate, now = DrainRate(), 0.0
    for gap in gaps:
        now += gap
        rate.departed(now)
    wait = rate.seconds_until(ahead, now + silence)
    assert wait.is_integer()
    assert 1 <= wait <= 60


@given(gap=st.floats(0.01, 3), ahead=st.integers(1, 20))
def test_a_steady_pace_is_learnt(gap: float, ahead: int) -> None:
    """After many departures at a constant gap, the wait is that gap times the places ahead."""
    rate, now = steady(gap)
    assert abs(rate.seconds_until(ahead, now) - min(max(ahead * gap, 1), 60)) <= 1
    assert rate.per_second(now) == pytest.approx(1 / gap, rel=0.25)


@given(batch=st.integers(2, 64), seconds=st.floats(0.5, 20))
def test_rows_that_leave_together_are_not_taken_for_a_fast_engine(batch: int, seconds: float) -> None:
    """A whole batch every so often counts as its number in that time, also just after its last one has
    left."""
    rate = DrainRate()
    rate.resume(0.0)
    for number in range(1, 21):
        for _ in range(batch):
            rate.departed(number * seconds)
    assert rate.gap_seconds(20 * seconds) == pytest.approx(seconds / batch, rel=0.3)


def test_a_pause_says_nothing_of_the_pace() -> None:
    """After an idle hour the first refused client is not told to wait for a minute."""
    rate, now = steady(0.1)
    rate.resume(now + 3600)
    rate.departed(now + 3600.1)
    assert rate.seconds_until(5, now + 3600.1) == 1


def test_a_departure_that_is_overdue_counts() -> None:
    """Ten a second until now, and then none for half a minute: the wait is no longer a tenth."""
    rate, now = steady(0.1)
    assert rate.seconds_until(1, now + 30) == 30


def test_while_the_engine_has_room_departures_say_nothing() -> None:
    """Ten a second while it was full; since then one a minute, as requests arrive."""
    rate, now = steady(0.1)
    for _ in range(20):
        rate.pause()
        now += 60
        rate.departed(now)
    assert rate.gap_seconds(now) == pytest.approx(0.1, rel=0.01)


@given(batch=st.integers(4, 64), seconds=st.floats(0.5, 20), ahead=st.integers(1, 500))
def test_just_before_a_batch_leaves_the_silence_counts_once(batch: int, seconds: float, ahead: int) -> None:
    """The time since the last departure is long before them all, but they leave together: many ahead do not
    wait as long each."""
    rate = DrainRate()
    rate.resume(0.0)
    for number in range(1, 21):
        for _ in range(batch):
            rate.departed(number * seconds)
    wait = rate.wait_seconds(ahead, 20.99 * seconds)
    assert 0.7 * ahead * seconds / batch <= wait <= seconds + 2 * ahead * seconds / batch


def test_there_is_no_figure_before_there_is_a_measurement() -> None:
    """A guess is good enough for a Retry-After only."""
    rate, now = steady(0.5, 7)
    assert rate.per_second(now) is None
    rate.departed(now + 0.5)
    assert rate.per_second(now + 0.5) is not None
