"""The deadline of a request: the earliest limit that applies."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.config import IntakeConfig
from scheduler.intake.expiry import Expiry, Limit
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
from tests.examples import examples
from tests.scheduler.requests.records import make_record


def watching(config: IntakeConfig) -> Expiry:
    return Expiry(config, lambda now: 1.0)


def queued(timeout: float | None = None, request_id: int = 1, at: float = 0.0) -> StreamRecord:
    record = make_record(request_id, timeout_seconds=timeout, arrived_at=at)
    record.queued_at = at + 1.0
    return record


def started(record: StreamRecord, at: float) -> StreamRecord:
    record.state = State.SUBMITTED
    record.dispatched_at = record.started_at = at
    return record


def test_without_limits_nothing_is_watched() -> None:
    """The usual case costs nothing."""
    deadlines = watching(IntakeConfig())
    deadlines.watch(queued())
    assert (len(deadlines), deadlines.next_at) == (0, math.inf)


def test_the_earliest_limit_that_applies_is_the_one() -> None:
    """In the queue: the client's timeout from its arrival, or the queue's limit from its entry. In a slot:
    the client's, or the running limit from its first progress."""
    config = IntakeConfig(queue_seconds=10, max_running_seconds=20)
    for timeout, in_queue, in_engine in (
        (None, (11.0, Limit.QUEUE), (25.0, Limit.RUNNING)),
        (5.0, (5.0, Limit.REQUEST), (5.0, Limit.REQUEST)),
        (15.0, (11.0, Limit.QUEUE), (15.0, Limit.REQUEST)),
        (60.0, (11.0, Limit.QUEUE), (25.0, Limit.RUNNING)),
    ):
        for record, (at, limit) in (
            (queued(timeout), in_queue),
            (started(queued(timeout), 5.0), in_engine),
        ):
            deadlines = watching(config)
            deadlines.watch(record)
            assert deadlines.next_at == at
            assert deadlines.take_expired(at - 0.001) == []
            assert deadlines.take_expired(at) == [(record, limit)]


def test_the_time_in_the_engines_own_line_is_neither_queueing_nor_running() -> None:
    """Looked ahead but in no slot: only the client's own timeout counts."""
    deadlines = watching(IntakeConfig(queue_seconds=10, max_running_seconds=20))
    for timeout, at in ((None, math.inf), (60.0, 60.0)):
        record = queued(timeout)
        deadlines.watch(record)
        record.state = State.SUBMITTED
        deadlines.watch(record)
        assert deadlines.next_at == at


class DeadlineMachine(RuleBasedStateMachine):
    """Watch, forget and expire in any order, against a plain dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = watching(IntakeConfig(max_running_seconds=30))
        self.records: dict[int, StreamRecord] = {}
        self.due: dict[int, float] = {}
        self.now = 0.0

    @rule(timeout=st.floats(0.5, 50))
    def come(self, timeout: float) -> None:
        record = queued(timeout, len(self.records) + 1, self.now)
        self.records[record.request_id] = record
        self.deadlines.watch(record)
        self.due[record.request_id] = self.now + timeout

    @precondition(lambda self: self.due)
    @rule(which=st.integers(0, 100))
    def dispatch(self, which: int) -> None:
        request_id = list(self.due)[which % len(self.due)]
        record = self.records[request_id]
        if record.dispatched_at is None:
            self.deadlines.watch(started(record, self.now))
            self.due[request_id] = min(self.due[request_id], self.now + 30)

    @precondition(lambda self: self.records)
    @rule(which=st.integers(0, 100))
    def forget(self, which: int) -> None:
        request_id = list(self.records)[which % len(self.records)]
        self.deadlines.forget(self.records[request_id])
        self.due.pop(request_id, None)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        expired = {record.request_id for record, _ in self.deadlines.take_expired(self.now)}
        assert expired == {request_id for request_id, at in self.due.items() if at <= self.now}
        self.due = {request_id: at for request_id, at in self.due.items() if at > self.now}

    @invariant()
    def the_next_is_known_and_nothing_piles_up(self) -> None:
        assert len(self.deadlines) == len(self.due)
        assert self.deadlines.next_at == min(self.due.values(), default=math.inf)
        assert len(self.deadlines._heap) <= 2 * len(self.due) + 18


TestDeadlines = DeadlineMachine.TestCase
TestDeadlines.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
