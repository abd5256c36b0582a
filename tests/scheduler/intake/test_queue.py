"""The queue's bounds and accounts, and the contents of a ticket."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.config import IntakeConfig
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.lifecycle import Event
from scheduler.requests.record import StreamRecord
from tests.scheduler.intake.tickets import empty_queue
from tests.scheduler.requests.records import make_record

LIMIT = 5


@given(arrivals=st.lists(st.tuples(st.sampled_from("AAABC"), st.integers(1, 3)), max_size=20))
def test_a_full_queue_drops_the_newest_of_the_tenant_with_most(arrivals: list[tuple[str, int]]) -> None:
    """For another tenant's, until that would have as many: nobody is refused for another's flood."""
    queue, ids = empty_queue(IntakeConfig(max_queue=LIMIT)), count(1)
    waiting: list[StreamRecord] = []
    for now, (tenant, requests) in enumerate(arrivals):
        held = Counter(record.request.tenant for record in waiting)
        own = held[tenant] + requests
        fair = own + sum(min(count_, own) for name, count_ in held.items() if name != tenant)
        assert (queue.yielding(tenant, requests) is not None) == (fair <= LIMIT)
        if fair > LIMIT:
            continue
        for record in queue.surplus(tenant, requests):
            of_tenant = [one for one in waiting if one.request.tenant == record.request.tenant]
            assert of_tenant[-1] is record
            assert len(of_tenant) == max(Counter(one.request.tenant for one in waiting).values())
            waiting.remove(record)
            queue._requests.move(record, Event.CANCEL)
            queue.left(record, float(now))
        for _ in range(requests):
            waiting.append(make_record(next(ids), tenant=tenant))
            queue.push(waiting[-1], float(now))


def compute(queue: IntakeQueue, record: StreamRecord, output_tokens: int = 1) -> None:
    """Let the engine compute the record."""
    queue.push(record, 0.0)
    assert queue.pop(0.0) is record
    record.prefilled_tokens = len(record.submit.prompt)
    record.output_tokens = output_tokens
    queue.charge_actual(record, 0.0)


def service_of(queue: IntakeQueue) -> float:
    """Return the attained service of the one tenant that waits."""
    (flow,) = queue.statistics(0.0).flows
    return flow.tenant_service_tokens


def test_a_conversations_next_turn_goes_before_an_equal_prompt_that_is_new() -> None:
    """Its beginning was computed a moment ago, so there is likely little to compute."""
    queue = empty_queue(IntakeConfig())
    history = list(range(4000))
    compute(queue, make_record(1, prompt=history))
    new, turn = make_record(2, prompt=list(range(5000, 9100))), make_record(3, prompt=[*history, *range(100)])
    queue.push(new, 0.0)
    queue.push(turn, 0.0)
    assert queue.pop(0.0) is turn


def test_a_charge_is_what_the_engine_did_and_not_what_was_expected() -> None:
    """Cached tokens cost nothing; an answer of 3 is charged 3 (twice), whatever max_tokens allowed."""
    queue = empty_queue(IntakeConfig())
    record = make_record(1, prompt=[5] * 1000, max_tokens=5000)
    queue.push(record, 0.0)
    queue.pop(0.0)
    queue.push(make_record(2), 0.0)
    assert service_of(queue) == 1000 + 2 * 256
    record.prefilled_tokens, record.cached_tokens, record.output_tokens = 1000, 900, 3
    queue.charge_actual(record, 0.0)
    assert service_of(queue) == 100 + 2 * 3


def test_an_answer_is_expected_to_be_as_long_as_the_latest_ones() -> None:
    """But at most max_tokens."""
    queue = empty_queue(IntakeConfig())
    for request_id in range(200):
        compute(queue, make_record(request_id, max_tokens=5000), output_tokens=40)
    for request_id, max_tokens, expected in ((1000, 5000, 40), (1001, 10, 10)):
        queue.push(make_record(request_id, max_tokens=max_tokens), 0.0)
        record = queue.pop(0.0)
        queue.push(waiting := make_record(request_id + 10), 0.0)
        before = service_of(queue)
        record.prefilled_tokens = 3
        queue.charge_actual(record, 0.0)
        assert before - service_of(queue) == pytest.approx(2 * expected)
        queue.left(waiting, 0.0)
