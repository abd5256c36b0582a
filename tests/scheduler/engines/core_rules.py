"""What holds of requests and their places after every event of a pool."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engines.pool import Pool
from scheduler.intake.queue import IntakeQueue
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, ENDING, QUEUE, Requests, place_of


def each_is_in_one_place(requests: Requests, pool: Pool, here: Sequence[StreamRecord]) -> None:
    """Where its state says: `here` are those that have not retired. Nothing of what has left is anywhere, and
    no effect is left over."""
    assert {one.request_id for one in requests} == {one.request_id for one in here}
    assert [*requests.retired, *requests.cancelling] == [], "effects are left over"
    assert not requests.changed
    places = {QUEUE, AWAITING, ENDING, *pool.names}
    assert requests._at.keys() <= places, "a place is kept of an engine that has left"
    for place in places:
        expected = {one.request_id for one in here if place_of(one.state, one.engine) == place}
        assert requests.at(place).keys() == expected
    assert {place_of(one.state, one.engine) for one in here} <= places


def nobody_waits_beside_room(pool: Pool, queue: IntakeQueue) -> None:
    """Nor has an engine without a process a request."""
    open_ = [one for one in pool if one.room and not one.quarantined]
    assert pool.held or not (open_ and len(queue)), "requests wait, and an engine has room"
    lost = pool.awaiting(suspect=False)
    assert not (lost and any(one.room for one in pool)), "a lost request waits, and an engine has room"
    assert all(one.ready or not one.requests for one in pool), "an engine has requests and no process"
