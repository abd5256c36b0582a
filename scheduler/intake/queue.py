"""Accepted requests that the engine does not have yet: bounded, first come first served.

Pure: no clock, no I/O. Who goes next is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.streams.record import StreamRecord


class IntakeQueue:
    """Insertion order is service order. `limit` is for the caller to ask with `full`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: dict[int, StreamRecord] = {}

    @property
    def full(self) -> bool:
        return self.room < 1

    @property
    def room(self) -> int:
        """How many more may enter."""
        return self._limit - len(self._records)

    def push(self, record: StreamRecord) -> None:
        assert not self.full, "admission let a request into a full queue"
        self._records[record.request_id] = record

    def pop(self) -> StreamRecord:
        """The next to be served. KeyError when empty."""
        try:
            request_id = next(iter(self._records))
        except StopIteration:
            raise KeyError("the queue is empty") from None
        return self._records.pop(request_id)

    def remove(self, request_id: int) -> StreamRecord | None:
        """Take one out, wherever it stands; None if it is not here."""
        return self._records.pop(request_id, None)

    def ahead_of(self, request_id: int) -> int | None:
        """How many will be served before this one; None if it is not here. O(queue)."""
        for position, waiting in enumerate(self._records):
            if waiting == request_id:
                return position
        return None

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[StreamRecord]:
        return iter(self._records.values())
