"""The effect of an engine's death on the requests on board. Pure.

A request that has received some tokens from an engine is *trusted* (`StreamRecord.trusted`). After a death
all trusted requests resume at once, on any engine. Of the others those are suspects that the engine was
computing or reading (`Begun`); what had not begun is none. A request that crashes the engine does so in its
prefill or, when resumed, at the same token again. Suspects resume one at a time on an engine, once all
others that it resumed are trusted again; new requests go on beside them. A culprit fails when it was a
suspect at `max_request_deaths` deaths in a row, the last time as the only one in its step. Where it was not
alone then, it resumes where all others are trusted, and no request joins it before it is trusted itself
(*quarantine*): the next death has one culprit. A death at which it was trusted does not count: it moved at
once, and if the next engine dies before it is trusted there, an operator may have killed several engines.

Where they resume follows from the cause (`judge`). After a crash of the engine's own each may go to another
engine once, so that they need not wait for a load one after the other; a second death keeps it to that
engine. After a death for lack of memory or of the device's time it does not roam: the
same engine's next process tries it again, within lowered bounds. A death because the device timed out is
blamed on no request while the next engine can have smaller prefill chunks: those on board keep their
suspicion, and the death does not count. A signal from outside is blamed on none either, nor is GPU work that
macOS ended for another process's fault: both take the suspicion back. All of this holds only a bounded number
of times for one request: chunks climb back, its prompt may be one that no chunk size gets through, and a
system may kill for lack of memory without saying so.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from scheduler.errors import PoisonousRequest
from scheduler.requests.record import StreamRecord
from scheduler.statistics import DeathCause

_MOST_SPARED_DEATHS = 12
"""More than there are halvings between the largest usual chunk, of 8,192 tokens, and the smallest."""
_MOST_KILLS = 3
"""Deaths in a row, each before the request was trusted: an operator does not kill the engine of one request
so often."""


def count_death(on_board: Iterable[StreamRecord], in_step: Container[int]) -> list[StreamRecord]:
    """Count the death in every record. Return the suspects. `in_step`: ids of the requests that the engine
    was reading or computing; the others stay what they were."""
    suspects = []
    for record in on_board:
        record.roams = False
        if record.trusted:
            record.suspect = False
            record.deaths = record.spared_deaths = 0
        elif record.request_id in in_step:
            record.suspect = True
            record.deaths += 1
            suspects.append(record)
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
        f"the engine died {deaths} times with request {record.request.public_id} on board,"
        f" the last time ({cause}) as the only suspect: do not resend it unchanged"
    )


def takes_suspect(on_board: Collection[StreamRecord], slots: int, *, alone: bool) -> bool:
    """Return whether an engine with these requests may resume a suspect now. `alone`: it must be the only one
    to blame, and have a slot. Otherwise there must be no other suspect, and those that were resumed must be
    trusted, or a second death would make suspects of them."""
    if alone:
        return len(on_board) < slots and all(record.trusted for record in on_board)
    return all(record.trusted or not (record.suspect or record.resumed) for record in on_board)
