"""The deadline of a request: the earliest limit that applies."""

from __future__ import annotations

import math

from scheduler.config import IntakeConfig
from scheduler.intake.expiry import Expiry, Limit
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord
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
