"""Who joins with the next step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.planner import plan
from tests.contracts.check_backend import request


@settings(derandomize=True, deadline=None)
@given(ids=st.lists(st.integers(0, 99), unique=True, max_size=40), free=st.integers(-2, 40))
def test_admits_as_many_as_fit_in_order_of_arrival(ids: list[int], free: int) -> None:
    """min(waiting, free) requests, the oldest first, whatever their ids; none where no slot is free."""
    waiting = {request_id: request(request_id, [1]) for request_id in ids}
    admitted = plan(waiting.values(), free).admit
    assert [submit.request_id for submit in admitted] == ids[: min(len(ids), max(0, free))]


def test_a_plan_is_only_a_plan() -> None:
    """What waits is read no further than it is admitted, and is not changed."""
    waiting = iter([request(1, [1]), request(2, [2]), request(3, [3])])
    assert len(plan(waiting, 2).admit) == 2
    assert next(waiting).request_id == 3
