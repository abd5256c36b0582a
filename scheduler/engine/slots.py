"""One record a running request, and how many may run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class Slot:
    """A request that is in the running batch."""

    request_id: int
    prompt_tokens: int
    prefilled_tokens: int = 0
    generated_tokens: int = 0


class Slots:
    """The running requests by id, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_request: dict[int, Slot] = {}

    @property
    def free(self) -> int:
        return self._limit - len(self._by_request)

    def take(self, slot: Slot) -> None:
        assert self.free > 0, "the planner admitted more than there are slots"
        assert slot.request_id not in self._by_request, "a request id was used twice"
        self._by_request[slot.request_id] = slot

    def release(self, request_id: int) -> Slot | None:
        """The slot that became free, or None where this request had none."""
        return self._by_request.pop(request_id, None)

    def __getitem__(self, request_id: int) -> Slot:
        return self._by_request[request_id]

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._by_request

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._by_request.values())
