"""Admission: which requests enter the queue, and when the others should retry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config import IntakeConfig
from scheduler.errors import (
    DeadlineUnmeetable,
    InvalidRequest,
    QueueFull,
    SchedulerError,
    TenantLimit,
    Unavailable,
)
from scheduler.intake.admission import Admission
from scheduler.intake.queue import IntakeQueue
from scheduler.request import GenerationRequest
from tests.fakes.scheduling import ask
from tests.scheduler.intake.tickets import dispatch_next, empty_queue
from tests.scheduler.requests.records import make_record


def queue_of(requests: int, tenant: str = "", **bounds: Any) -> IntakeQueue:
    """This many waiting requests of one tenant; three prompt tokens each."""
    queue = empty_queue(replace(IntakeConfig(max_queue=requests), **bounds))
    for request_id in range(requests):
        queue.push(make_record(request_id, tenant=tenant), 0.0)
    return queue


def admission_at(queue: IntakeQueue, gap_seconds: float) -> Admission:
    """Its clock stands at 0, after many departures at that pace."""
    admission = Admission(queue)
    for number in range(-200, 1):
        admission.rate.departed(number * gap_seconds)
    return admission


def refusal(check: Callable[[], None]) -> SchedulerError:
    with pytest.raises(SchedulerError) as caught:
        check()
    return caught.value


def test_one_more_may_enter_while_there_is_room() -> None:
    """The bound itself may be reached, not passed."""
    queue = empty_queue(IntakeConfig(max_queue=2))
    admission = Admission(queue)
    for request_id in (1, 2):
        admission.check(ask(), 0.0)
        queue.push(make_record(request_id), 0.0)
    assert isinstance(refusal(lambda: admission.check(ask(), 0.0)), QueueFull)
    dispatch_next(queue)
    admission.check(ask(), 0.0)
    # All of a request's choices, or none.
    assert isinstance(refusal(lambda: admission.check(ask(), 0.0, requests=2)), QueueFull)
    assert isinstance(refusal(lambda: admission.check(ask(), 0.0, requests=2)), QueueFull)


def test_a_full_queue_says_how_many_wait_and_when_to_come_back() -> None:
    """An eighth of the queue must leave first, at the pace of the latest departures."""
    admission = admission_at(queue_of(80), 2.0)
    error = refusal(lambda: admission.check(ask(), 0.0))
    assert isinstance(error, QueueFull)
    assert "80 requests are waiting" in error.message
    assert error.retry_after_seconds == 20


def test_more_answers_than_may_ever_wait_are_the_clients_mistake() -> None:
    """A full queue has room later; for these there is none, however long the client comes back."""
    for config in (IntakeConfig(max_queue=4), IntakeConfig(max_queue=9, max_queue_per_tenant=4)):
        admission = Admission(empty_queue(config))
        admission.check(ask(), 0.0, requests=4)
        error = refusal(partial(admission.check, ask(), 0.0, requests=5))
        assert (type(error), error.param) == (InvalidRequest, "n")
        assert "exceeds the queue bound of 4" in error.message


def test_a_tenant_is_held_to_its_own_bound_and_nobody_else_is() -> None:
    """Its refusal names its own bound even if the whole queue is full, because it can do something about
    that."""
    for spare in (0, 1):
        queue = queue_of(8, "greedy", max_queue=8 + spare, max_queue_per_tenant=8)
        admission = admission_at(queue, 2.0)
        error = refusal(lambda admission=admission: admission.check(ask(tenant="greedy"), 0.0))  # type: ignore[misc]
        assert isinstance(error, TenantLimit)
        assert "8 requests of this tenant" in error.message
        assert error.retry_after_seconds == 2
    admission.check(ask(tenant="other"), 0.0)


def test_a_tenant_that_shares_the_engine_waits_for_the_others_too() -> None:
    """With four tenants waiting, only every fourth departure makes room for one of this tenant's."""
    queue = queue_of(8, "greedy", max_queue=100, max_queue_per_tenant=8)
    for number in range(3):
        queue.push(make_record(100 + number, tenant=f"other {number}"), 0.0)
    error = refusal(lambda: admission_at(queue, 2.0).check(ask(tenant="greedy"), 0.0))
    assert error.retry_after_seconds == 4 * 2


@given(
    prompts=st.lists(st.integers(1, 50), max_size=30),
    limit=st.integers(1, 200),
)
def test_prompt_tokens_are_bounded_but_one_prompt_is_always_taken(prompts: list[int], limit: int) -> None:
    """Never more tokens than the bound, unless a single prompt has more: else it could never be served."""
    queue = empty_queue(IntakeConfig(max_queued_tokens=limit))
    admission = Admission(queue)
    for request_id, tokens in enumerate(prompts):
        if not len(queue) or queue.prompt_tokens + tokens <= limit:
            admission.check_prepared(ask(), tokens, None, 0.0, waits=True)
            queue.push(make_record(request_id, prompt=[1] * tokens), 0.0)
        else:
            with pytest.raises(QueueFull, match=f"{queue.prompt_tokens} prompt tokens are waiting"):
                admission.check_prepared(ask(), tokens, None, 0.0, waits=True)
        assert queue.prompt_tokens <= limit or len(queue) == 1


def hurried(timeout: float) -> GenerationRequest:
    return ask(timeout_seconds=timeout)


@pytest.mark.parametrize(("timeout", "is_met"), [(10.5, False), (12.0, False), (12.2, True), (1e6, True)])
def test_a_deadline_that_its_place_in_the_queue_cannot_meet_is_refused(timeout: float, is_met: bool) -> None:
    """Ten ahead at one a second: it is done after eleven, and a tenth more is wanted to be sure."""
    admission = admission_at(queue_of(10, max_queue=100), 1.0)

    def check() -> None:
        admission.check_prepared(hurried(timeout), 3, timeout, 0.0, waits=True)

    if is_met:
        check()
        return
    error = refusal(check)
    assert isinstance(error, DeadlineUnmeetable)
    assert (error.param, error.retry_after_seconds) == ("timeout", 1.0)
    assert f"{timeout:g} s cannot be met: the estimated time to completion is 11.0 s" in error.message


@pytest.mark.parametrize(("max_tokens", "is_met"), [(None, False), (100, False), (10, True)])
def test_a_deadline_counts_its_own_time_on_board_too(max_tokens: int | None, is_met: bool) -> None:
    """Twenty on board, one a second: an answer takes twenty, one of a tenth of the usual tokens two. Ten are
    ahead."""
    queue = queue_of(30)
    for _ in range(20):
        dispatch_next(queue)
    queue.push(record := make_record(1000), 0.0)
    dispatch_next(queue)
    record.output_tokens = 100
    queue.charge_actual(record, 0.0)
    admission = admission_at(queue, 1.0)

    def check() -> None:
        request = ask(max_tokens=max_tokens, timeout_seconds=15)
        admission.check_prepared(request, 3, 15.0, 0.0, waits=True)

    if is_met:
        check()
    else:
        assert isinstance(refusal(check), DeadlineUnmeetable)


def test_a_quiet_tenants_deadline_is_judged_by_its_own_turn() -> None:
    """A hundred of the flood's are waiting, of which one goes before it."""
    queue = queue_of(100, "flood", max_queue=200)
    admission = admission_at(queue, 1.0)
    admission.check_prepared(ask(tenant="quiet"), 3, 4.0, 0.0, waits=True)
    flood = ask(tenant="flood", timeout_seconds=4)
    error = refusal(lambda: admission.check_prepared(flood, 3, 4.0, 0.0, waits=True))
    assert isinstance(error, DeadlineUnmeetable)


def test_nobody_is_refused_for_a_guess_or_where_nothing_is_waited_for() -> None:
    """Without a measured pace, or with room in the engine, a deadline is met until it is not."""
    queue = queue_of(10, max_queue=100)
    Admission(queue).check_prepared(hurried(2), 3, 2.0, 0.0, waits=True)
    admission_at(queue, 1.0).check_prepared(hurried(2), 3, 2.0, 0.0, waits=False)


def test_a_deadline_that_passed_while_it_was_tokenized_is_refused() -> None:
    """It is over before it begins."""
    admission = Admission(empty_queue(IntakeConfig()))
    error = refusal(lambda: admission.check_prepared(hurried(1), 3, 1.0, 1.5, waits=False))
    assert isinstance(error, DeadlineUnmeetable)


def test_a_blocked_gate_gives_its_reason_until_it_is_unblocked() -> None:
    """Unavailable, also where there would be room."""
    admission = Admission(empty_queue(IntakeConfig(max_queue=1)))
    admission.block("the engine does not start")
    error = refusal(lambda: admission.check(ask(), 0.0))
    assert type(error) is Unavailable
    assert error.message == admission.blocked(0.0) == "the engine does not start"
    assert error.retry_after_seconds == 10
    admission.unblock()
    admission.check(ask(), 0.0)


def test_who_is_being_prepared_counts_as_waiting() -> None:
    """Else one tenant's thousand slow grammars are in no bound. Those that the engine has room for do not,
    and the tenant with most yields."""
    admission = Admission(empty_queue(IntakeConfig(max_queue=8, max_queue_per_tenant=2)))
    ours, theirs = ask(tenant="ours"), ask(tenant="theirs")
    with ExitStack() as preparing:
        for _ in range(3):
            preparing.enter_context(admission.preparing(ours, 0.0, engine_room=1))
        assert isinstance(refusal(lambda: admission.preparing(ours, 0.0, 1).__enter__()), TenantLimit)
        admission.check(ours, 0.0)
        with admission.preparing(theirs, 0.0, engine_room=1):
            pass
        for number in range(6):
            preparing.enter_context(admission.preparing(ask(tenant=f"{number}"), 0.0, engine_room=1))
        assert isinstance(refusal(lambda: admission.preparing(theirs, 0.0, 1, 2).__enter__()), QueueFull)
        admission.check(theirs, 0.0, engine_room=1)
    with admission.preparing(ours, 0.0, engine_room=0):
        pass
