"""One record a running request, never more than the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.sequence import Sequence, Slots
from tests.contracts.journal import request


def _sequence(request_id: int) -> Sequence:
    return Sequence.of(request(request_id, [1, 2, 3]))


@settings(derandomize=True, deadline=None)
@given(limit=st.integers(1, 5), moves=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60))
def test_slots_are_a_bounded_table(limit: int, moves: list[tuple[bool, int]]) -> None:
    """Any order of taking and releasing agrees with a plain dict: what is there, in which order, and
    how much is free."""
    slots, model = Slots(limit), dict[int, Sequence]()
    for take, request_id in moves:
        if take and request_id not in model and len(model) < limit:
            model[request_id] = _sequence(request_id)
            slots.take(model[request_id])
        elif not take:
            assert slots.release(request_id) is model.pop(request_id, None)
        assert list(slots) == list(model.values())
        assert len(slots) == len(model)
        assert slots.free == limit - len(model)
        assert all((request_id in slots) == (request_id in model) for request_id in range(10))
        assert all(slots[request_id] is slot for request_id, slot in model.items())


def test_taking_more_than_there_are_is_our_own_mistake() -> None:
    """Slots do not grow, and a request has one of them."""
    slots = Slots(2)
    slots.take(_sequence(1))
    with pytest.raises(AssertionError, match="twice"):
        slots.take(_sequence(1))
    slots.take(_sequence(2))
    with pytest.raises(AssertionError, match="than there are slots"):
        slots.take(_sequence(3))
    with pytest.raises(KeyError):
        slots[3]
