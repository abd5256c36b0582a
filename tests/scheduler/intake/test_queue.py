"""The queue, move by move against a plain list."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.intake.queue import IntakeQueue
from scheduler.streams.record import StreamRecord
from tests.scheduler.streams.records import make_record

LIMIT = 5


class QueueMachine(RuleBasedStateMachine):
    """Push, pop and remove in any order; first come is first served."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = IntakeQueue(LIMIT)
        self.oracle: list[StreamRecord] = []
        self.ids = count(1)

    @precondition(lambda self: len(self.oracle) < LIMIT)
    @rule()
    def push(self) -> None:
        record = make_record(next(self.ids))
        self.queue.push(record)
        self.oracle.append(record)

    @precondition(lambda self: self.oracle)
    @rule()
    def pop(self) -> None:
        assert self.queue.pop() is self.oracle.pop(0)

    @rule(request_id=st.integers(1, 30))
    def remove(self, request_id: int) -> None:
        expected = next((record for record in self.oracle if record.request_id == request_id), None)
        assert self.queue.remove(request_id) is expected
        if expected is not None:
            self.oracle.remove(expected)

    @invariant()
    def agree(self) -> None:
        assert list(self.queue) == self.oracle
        assert len(self.queue) == len(self.oracle)
        assert self.queue.full == (len(self.oracle) >= LIMIT)
        for position, record in enumerate(self.oracle):
            assert self.queue.ahead_of(record.request_id) == position
        assert self.queue.ahead_of(10**9) is None


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_an_empty_queue_has_nothing_to_pop() -> None:
    """KeyError, whether it never held anything or no longer does."""
    queue = IntakeQueue(LIMIT)
    with pytest.raises(KeyError):
        queue.pop()
    queue.push(make_record(1))
    queue.pop()
    with pytest.raises(KeyError):
        queue.pop()


def test_pushing_into_a_full_queue_is_a_bug_of_the_caller() -> None:
    """Admission asks first."""
    queue = IntakeQueue(1)
    queue.push(make_record(1))
    with pytest.raises(AssertionError):
        queue.push(make_record(2))
