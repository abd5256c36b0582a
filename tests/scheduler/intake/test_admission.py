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
    InvalidRequest,
    QueueFull,
    SchedulerError,
    TenantLimit,
)
from scheduler.intake.admission import Admission
from scheduler.intake.queue import IntakeQueue
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


def refusal(check: Callable[[], object]) -> SchedulerError:
    with pytest.raises(SchedulerError) as caught:
        check()
    return caught.value


def test_one_more_may_enter_while_there_is_room() -> None:
    """The bound itself may be reached, not passed."""
    queue = empty_queue(IntakeConfig(max_queue=2))
    admission = Admission(queue)
    for request_id in (1, 2):
        admission.admit(ask(), 0.0, prompt_tokens=0)
        queue.push(make_record(request_id), 0.0)
    assert isinstance(refusal(lambda: admission.admit(ask(), 0.0, prompt_tokens=0)), QueueFull)
    dispatch_next(queue)
    admission.admit(ask(), 0.0, prompt_tokens=0)
    # All of a request's choices, or none.
    assert isinstance(refusal(lambda: admission.admit(ask(), 0.0, 2, prompt_tokens=0)), QueueFull)
    assert isinstance(refusal(lambda: admission.admit(ask(), 0.0, 2, prompt_tokens=0)), QueueFull)


def test_a_full_queue_says_how_many_wait_and_when_to_come_back() -> None:
    """An eighth of the queue must leave first, at the pace of the latest departures."""
    admission = admission_at(queue_of(80), 2.0)
    error = refusal(lambda: admission.admit(ask(), 0.0, prompt_tokens=0))
    assert isinstance(error, QueueFull)
    assert "80 requests are waiting" in error.message
    assert error.retry_after_seconds == 20


def test_more_answers_than_may_ever_wait_are_the_clients_mistake() -> None:
    """A full queue has room later; for these there is none, however long the client comes back."""
    for config in (IntakeConfig(max_queue=4), IntakeConfig(max_queue=9, max_queue_per_tenant=4)):
        admission = Admission(empty_queue(config))
        admission.admit(ask(), 0.0, 4, prompt_tokens=0)
        error = refusal(partial(admission.admit, ask(), 0.0, 5, prompt_tokens=0))
        assert (type(error), error.param) == (InvalidRequest, "n")
        assert "exceeds the queue bound of 4" in error.message


def test_a_tenant_is_held_to_its_own_bound_and_nobody_else_is() -> None:
    """Its refusal names its own bound even if the whole queue is full, because it can do something about
    that."""
    for spare in (0, 1):
        queue = queue_of(8, "greedy", max_queue=8 + spare, max_queue_per_tenant=8)
        admission = admission_at(queue, 2.0)
        error = refusal(partial(admission.admit, ask(tenant="greedy"), 0.0, prompt_tokens=0))
        assert isinstance(error, TenantLimit)
        assert "8 requests of this tenant" in error.message
        assert error.retry_after_seconds == 2
    admission.admit(ask(tenant="other"), 0.0, prompt_tokens=0)


def test_a_tenant_that_shares_the_engine_waits_for_the_others_too() -> None:
    """With four tenants waiting, only every fourth departure makes room for one of this tenant's."""
    queue = queue_of(8, "greedy", max_queue=100, max_queue_per_tenant=8)
    for number in range(3):
        queue.push(make_record(100 + number, tenant=f"other {number}"), 0.0)
    error = refusal(lambda: admission_at(queue, 2.0).admit(ask(tenant="greedy"), 0.0, prompt_tokens=0))
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
            admission.admit(ask(), 0.0, prompt_tokens=tokens)
            queue.push(make_record(request_id, prompt=[1] * tokens), 0.0)
        else:
            with pytest.raises(QueueFull, match=f"{queue.prompt_tokens} prompt tokens are waiting"):
                admission.admit(ask(), 0.0, prompt_tokens=tokens)
        assert queue.prompt_tokens <= limit or len(queue) == 1


def test_who_is_being_prepared_counts_as_waiting() -> None:
    """Else one tenant's thousand slow grammars are in no bound. Those that the engine has room for do not,
    and the tenant with most yields."""
    admission = Admission(empty_queue(IntakeConfig(max_queue=8, max_queue_per_tenant=2)))
    ours, theirs = ask(tenant="ours"), ask(tenant="theirs")
    with ExitStack() as preparing:
        for _ in range(3):
            preparing.enter_context(admission.preparing(ours, 0.0, engine_room=1))
        assert isinstance(refusal(lambda: admission.preparing(ours, 0.0, 1).__enter__()), TenantLimit)
        admission.admit(ours, 0.0, prompt_tokens=0)
        with admission.preparing(theirs, 0.0, engine_room=1):
            pass
        for number in range(6):
            preparing.enter_context(admission.preparing(ask(tenant=f"{number}"), 0.0, engine_room=1))
        assert isinstance(refusal(lambda: admission.preparing(theirs, 0.0, 1, 2).__enter__()), QueueFull)
        preparing.enter_context(admission.preparing(theirs, 0.0, engine_room=1))
    with admission.preparing(ours, 0.0, engine_room=0):
        pass
