"""Requests whose engine died, until another engine resumes them or they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from scheduler.errors import SchedulerError
from scheduler.requests.lifecycle import Event
from scheduler.requests.record import StreamRecord


class Awaiting:
    """Requests that await another engine, in the order of their acceptance, however often each was lost.
    `on_retired` is called with every record that ends here."""

    def __init__(self, on_retired: Callable[[StreamRecord], None]) -> None:
        self._on_retired = on_retired
        self._records: dict[int, StreamRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(self._records.values())

    def __contains__(self, record: StreamRecord) -> bool:
        return record.request_id in self._records

    @property
    def trusted(self) -> list[StreamRecord]:
        """Return those that did not crash their engine: any engine may have them."""
        return [record for record in self._records.values() if not record.suspect]

    @property
    def suspects(self) -> list[StreamRecord]:
        """Return those that may have crashed it: each needs an engine whose death would have no other
        culprit."""
        return [record for record in self._records.values() if record.suspect]

    def add(self, records: Iterable[StreamRecord]) -> None:
        lost = self._records | {record.request_id: record for record in records}
        self._records = dict(sorted(lost.items()))

    def take(self, record: StreamRecord) -> StreamRecord:
        """Remove a request that an engine resumes now."""
        return self._records.pop(record.request_id)

    def cancel(self, record: StreamRecord) -> None:
        """Retire a request whose reader has left or whose deadline has passed: at once, because no engine has
        it."""
        self._end(record, Event.CANCEL)

    def give_up(self, record: StreamRecord, error: SchedulerError) -> None:
        """End the request with `error` as its final event: no engine will resume it."""
        record.fail(error)
        self._end(record, Event.RETIRE)

    def _end(self, record: StreamRecord, event: Event) -> None:
        del self._records[record.request_id]
        record.move(event)
        self._on_retired(record)
