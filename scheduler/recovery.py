"""What an engine's death means for the requests on board. Pure: `now` is an argument.

A request has *settled* on an engine when it has got some tokens from it. At a death, whoever had settled is
trusted: all of them go on together with the next engine. Whoever had not is a suspect, for a request that
kills the engine does so when it is read, or, where an answer goes on in its middle, at the same token again.
Suspects go on one at a time, each when the one before it has settled, so that a death has one culprit, and
the others lose no more than time. A culprit is convicted when it was on board at so many deaths in a row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from scheduler.config import RecoveryConfig
from scheduler.errors import PoisonousRequest
from scheduler.events import FinishReason
from scheduler.lifecycle import State
from scheduler.streams.record import StreamRecord


def count_death(on_board: Iterable[StreamRecord], limit: int) -> StreamRecord | None:
    """Every record is told of the death; the one to blame for it, if it is known and has reached `limit`."""
    suspects = []
    for record in on_board:
        record.suspect = not record.settled
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
    stranded: list[StreamRecord] = []
    on_board: list[StreamRecord] = []
    for record in records:
        (stranded if record.state is State.STRANDED else on_board).append(record)
    if trusted := [record for record in stranded if not record.suspect]:
        return trusted
    # Without a free slot it would be blamed for a death that it only waited through.
    if len(on_board) >= slots or not all(record.settled for record in on_board):
        return []
    return stranded[:1]


def ending_of(record: StreamRecord) -> FinishReason | None:
    """Why its answer is complete as it stands, where only the engine's last word of it was lost."""
    if record.emitted and record.emitted[-1] in record.prepared.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if record.output_tokens >= record.prepared.max_tokens else None


_SHARE_STEP = 0.8
_LEAST_SHARE = 0.25
"""With less, requests would wait and be computed again and again for memory that something else has taken."""


def lowered_share(share: float) -> float:
    """Of the budget for keys and values, what engines get after one that ran out of memory with `share`."""
    return max(_LEAST_SHARE, share * _SHARE_STEP)


class Storm:
    """Engines that die one after the other: waiting for the next one is no longer a matter of a moment."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque(maxlen=config.max_engine_deaths)

    def died(self, now: float) -> None:
        self._deaths.append(now)

    def reason(self, now: float) -> str | None:
        """What to tell clients; None in fair weather."""
        window, bound = self._config.death_window_seconds, self._config.max_engine_deaths
        if len(self._deaths) < bound or now - self._deaths[0] > window:
            return None
        return f"the engine died {bound} times within {window:g} seconds"
