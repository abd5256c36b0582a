"""What an engine's death means for the requests on board. Pure: `now` is an argument.

A request has *settled* on an engine when it has got some tokens from it. At a death, whoever had settled is
trusted: all of them go on together with the next engine. Whoever had not is a suspect, for a request that
kills the engine does so when it is read, or, where an answer goes on in its middle, at the same token again.
Suspects go on one at a time, each when the one before it has settled, so that a death has one culprit, and
the others lose no more than time. A culprit is convicted when it was on board at so many deaths in a row.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.errors import PoisonousRequest
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord


def count_death(on_board: Iterable[StreamRecord], limit: int) -> StreamRecord | None:
    """Every record is told of the death; the one to blame for it, if it is known and has reached `limit`."""
    suspects = []
    for record in on_board:
        record.suspect = not record.trusted
        record.deaths = record.deaths + 1 if record.suspect else 1
        if record.suspect:
            suspects.append(record)
    # Two suspects are none: an innocent neighbour must not be failed for the other's fault.
    return suspects[0] if len(suspects) == 1 and suspects[0].deaths >= limit else None


def poison(record: StreamRecord, cause: str) -> PoisonousRequest:
    """What the convicted one's client is told."""
    return PoisonousRequest(
        f"the engine died {record.deaths} times with request {record.prepared.request.public_id} on board,"
        f" the last time ({cause}) with no other to blame: do not send it again as it is"
    )


def to_resume(records: Iterable[StreamRecord], slots: int) -> list[StreamRecord]:
    """Of those whose engine is gone, the ones that may be sent to the next one now."""
    awaiting: list[StreamRecord] = []
    on_board: list[StreamRecord] = []
    for record in records:
        (awaiting if record.state is State.AWAITING_ENGINE else on_board).append(record)
    if trusted := [record for record in awaiting if not record.suspect]:
        return trusted
    # Without a free slot it would be blamed for a death that it only waited through.
    if len(on_board) >= slots or not all(record.trusted for record in on_board):
        return []
    return awaiting[:1]
