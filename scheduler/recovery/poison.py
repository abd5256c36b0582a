"""The effect of an engine's death on the requests on board. Pure: `now` is an argument.

A request that has received some tokens from an engine is *trusted* (`StreamRecord.trusted`). After a death
all trusted requests resume together on the next engine. The others are suspects: a request that crashes the
engine does so in its prefill or, when resumed, at the same token again. Suspects resume one at a time, each
once the one before it is trusted. So a death has one culprit, and the other requests lose only time. A
culprit fails when it was a suspect at `max_request_deaths` deaths in a row, the last time as the only one.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.errors import PoisonousRequest
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord


def count_death(on_board: Iterable[StreamRecord], limit: int) -> StreamRecord | None:
    """Count the death in every record. Return the only suspect if it has reached `limit` deaths."""
    suspects = []
    for record in on_board:
        record.suspect = not record.trusted
        record.deaths = record.deaths + 1 if record.suspect else 1
        if record.suspect:
            suspects.append(record)
    # With two suspects neither fails: one of them is innocent.
    return suspects[0] if len(suspects) == 1 and suspects[0].deaths >= limit else None


def poison(record: StreamRecord, cause: str) -> PoisonousRequest:
    """Return the culprit's final error."""
    return PoisonousRequest(
        f"the engine died {record.deaths} times with request {record.prepared.request.public_id} on board,"
        f" the last time ({cause}) as the only suspect: do not resend it unchanged"
    )


def to_resume(records: Iterable[StreamRecord], slots: int) -> list[StreamRecord]:
    """Return the requests awaiting an engine that may be sent to the new one now."""
    awaiting: list[StreamRecord] = []
    on_board: list[StreamRecord] = []
    for record in records:
        (awaiting if record.state is State.AWAITING_ENGINE else on_board).append(record)
    if trusted := [record for record in awaiting if not record.suspect]:
        return trusted
    # Without a free slot it would be blamed for a death while it only waited.
    if len(on_board) >= slots or not all(record.trusted for record in on_board):
        return []
    return awaiting[:1]
