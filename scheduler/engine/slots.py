"""The requests that are in the running batch, and how many may be."""

from __future__ import annotations

from collections.abc import Iterator

from scheduler.engine.sequence import Sequence


class Slots:
    """The running requests by id, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_request: dict[int, Sequence] = {}

    @property
    def free(self) -> int:
        return self._limit - len(self._by_request)

    def take(self, sequence: Sequence) -> None:
        assert self.free > 0, "the planner admitted more than there are slots"
        assert sequence.request_id not in self._by_request, "a request id was used twice"
        self._by_request[sequence.request_id] = sequence

    def release(self, request_id: int) -> Sequence | None:
        """The request that left, or None where it had no slot."""
        return self._by_request.pop(request_id, None)

    def __getitem__(self, request_id: int) -> Sequence:
        return self._by_request[request_id]

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_request.values())
