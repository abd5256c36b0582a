"""The effect of an engine's death on the requests on board. Pure.

A request that has received some tokens from an engine is *trusted* (`StreamRecord.trusted`). After a death
all trusted requests resume at once, on any engine. The others are suspects: a request that crashes the engine
does so in its prefill or, when resumed, at the same token again. A suspect resumes where all others are
trusted, and no request joins it before it is trusted itself. So a death has one culprit, and the other
requests lose only time. A culprit fails when it was a suspect at `max_request_deaths` deaths in a row, the
last time as the only one. A death at which it was trusted does not count: it moved at once, and if the next
engine dies before it is trusted there, an operator may have killed several engines.

Where they resume follows from the cause (`judge`). After a crash of the engine's own each may go to another
engine once, so that they need not wait for a load one after the other; a second death keeps it to engines
that are in quarantine already. After a death for lack of memory or of the device's time it does not roam: the
same engine's next process tries it again, within lowered bounds. A death because the device timed out is
blamed on no request while the next engine can have smaller prefill chunks: those on board keep their
suspicion, and the death does not count. A signal from outside is blamed on none either, nor is GPU work that
macOS ended for another process's fault: both take the suspicion back. All of this holds only a bounded number
of times for one request: chunks climb back, its prompt may be one that no chunk size gets through, and a
system may kill for lack of memory without saying so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from scheduler.errors import PoisonousRequest
from scheduler.requests.record import StreamRecord
from scheduler.statistics import DeathCause

_MOST_SPARED_DEATHS = 12
"""More than there are halvings between the largest usual chunk, of 8,192 tokens, and the smallest."""
_MOST_KILLS = 3
"""Deaths in a row, each before the request was trusted: an operator does not kill the engine of one request
so often."""


def count_death(on_board: Iterable[StreamRecord]) -> list[StreamRecord]:
    """Count the death in every record. Return the suspects."""
    suspects = []
    for record in on_board:
        record.suspect, record.roams = not record.trusted, False
        if record.suspect:
            record.deaths += 1
            suspects.append(record)
        else:
            record.deaths = record.spared_deaths = 0
    return suspects


def judge(suspects: Iterable[StreamRecord], cause: DeathCause, *, smallest_chunk: bool) -> None:
    """Apply the cause of a counted death, now that it is known. `smallest_chunk`: the next engine cannot have
    smaller prefill chunks."""
    for record in suspects:
        match cause:
            case DeathCause.GPU_TIMEOUT if not smallest_chunk:
                _spare(record, _MOST_SPARED_DEATHS)
            case DeathCause.KILLED | DeathCause.GPU_VICTIM:
                record.suspect = not (_spare(record, _MOST_KILLS) and not record.deaths)
            case DeathCause.CRASHED | DeathCause.FAULT | DeathCause.EXIT:
                record.roams = record.deaths == 1
            case _:
                pass


def _spare(record: StreamRecord, most: int) -> bool:
    """Take back that the death counted, unless `most` have been taken back."""
    if record.spared_deaths >= most:
        return False
    record.spared_deaths += 1
    record.deaths -= 1
    return True


def culprit_of(suspects: Sequence[StreamRecord], limit: int) -> StreamRecord | None:
    """Return the only suspect if it has reached `limit` deaths. Of two neither fails: one is innocent."""
    return suspects[0] if len(suspects) == 1 and suspects[0].deaths >= limit else None


def poison(record: StreamRecord, cause: str) -> PoisonousRequest:
    """Return the culprit's final error."""
    deaths = record.deaths + record.spared_deaths
    return PoisonousRequest(
        f"the engine died {deaths} times with request {record.prepared.request.public_id} on board,"
        f" the last time ({cause}) as the only suspect: do not resend it unchanged"
    )


def takes_suspect(on_board: Collection[StreamRecord], slots: int) -> bool:
    """Return whether an engine with these requests may resume a suspect now: its death would have no other
    culprit. Without a free slot the suspect would be blamed for a death while it only waited."""
    return len(on_board) < slots and all(record.trusted for record in on_board)
