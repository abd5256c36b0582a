"""Who may enter the queue, and when the others should come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.errors import Draining, QueueFull, SchedulerError, Unavailable
from scheduler.intake.admission import Admission, DrainRate
from scheduler.intake.queue import IntakeQueue
from tests.scheduler.streams.records import make_record


def full_queue(limit: int) -> IntakeQueue:
    queue = IntakeQueue(limit)
    for request_id in range(limit):
        queue.push(make_record(request_id))
    return queue


def refusal(admission: Admission) -> SchedulerError:
    with pytest.raises(SchedulerError) as caught:
        admission.check()
    return caught.value


@given(gaps=st.lists(st.floats(0, 1e7), max_size=20), ahead=st.integers(0, 10_000))
def test_the_wait_is_a_whole_number_of_seconds_within_bounds(gaps: list[float], ahead: int) -> None:
    """What a Retry-After header can carry, and never longer than a client would wait."""
    rate, now = DrainRate(), 0.0
    for gap in gaps:
        now += gap
        rate.departed(now)
    wait = rate.seconds_until(ahead)
    assert wait.is_integer()
    assert 1 <= wait <= 60


@given(gap=st.floats(0.01, 3), ahead=st.integers(1, 20))
def test_a_steady_rate_is_learnt(gap: float, ahead: int) -> None:
    """After many departures at one pace, the wait is that pace times the places ahead."""
    rate = DrainRate()
    for number in range(100):
        rate.departed(number * gap)
    assert abs(rate.seconds_until(ahead) - min(max(ahead * gap, 1), 60)) <= 1


def test_a_pause_says_nothing_of_the_pace() -> None:
    """After an idle hour the first refused client is not sent away for a minute."""
    rate = DrainRate()
    for number in range(100):
        rate.departed(number * 0.1)
    rate.resume()
    rate.departed(3600.0)
    rate.departed(3600.1)
    assert rate.seconds_until(5) == 1


@given(ahead=st.integers(0, 500))
def test_more_ahead_is_never_a_shorter_wait(ahead: int) -> None:
    """Monotone in the number of departures to wait for."""
    rate = DrainRate()
    rate.departed(0)
    rate.departed(0.3)
    assert rate.seconds_until(ahead) <= rate.seconds_until(ahead + 1)


def test_one_more_may_enter_while_there_is_room() -> None:
    """The bound itself may be reached, not passed."""
    queue = IntakeQueue(2)
    admission = Admission(queue)
    for request_id in (1, 2):
        admission.check()
        queue.push(make_record(request_id))
    assert isinstance(refusal(admission), QueueFull)
    queue.pop()
    admission.check()


def test_a_full_queue_says_how_many_wait_and_when_to_come_back() -> None:
    """An eighth of the queue must leave first, at the pace of the latest departures."""
    admission = Admission(full_queue(80))
    for number in range(100):
        admission.departed(number * 2.0)
    error = refusal(admission)
    assert isinstance(error, QueueFull)
    assert "80 requests are waiting" in error.message
    assert error.retry_after_seconds == 20


def test_a_blocked_gate_gives_its_reason_until_it_is_unblocked() -> None:
    """Unavailable, also where there would be room."""
    admission = Admission(IntakeQueue(1))
    admission.block("the engine does not start")
    error = refusal(admission)
    assert type(error) is Unavailable
    assert error.message == "the engine does not start"
    assert error.retry_after_seconds == 10
    admission.unblock()
    admission.check()


def test_a_closed_gate_stays_closed() -> None:
    """Shutting down outranks every other reason and is not taken back."""
    admission = Admission(full_queue(1))
    admission.block("the engine does not start")
    before = admission.draining
    admission.close()
    admission.unblock()
    assert (before, admission.draining) == (False, True)
    error = refusal(admission)
    assert isinstance(error, Draining)
    assert error.retry_after_seconds is not None
