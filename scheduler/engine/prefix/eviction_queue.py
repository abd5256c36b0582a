"""The order of eviction as a queue: its first is evicted next, and its order is renewed as time passes.

Lazy deletion in both heaps: an entry is valid while its ticket is its node's own. Each call takes O(log n),
amortised.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, TypeVar

NodeT = TypeVar("NodeT")


class EvictionQueue(Generic[NodeT]):
    def __init__(self, is_valid: Callable[[int, NodeT], bool]) -> None:
        self._is_valid = is_valid
        # (rank, worth, last use, is a leaf, ticket, node)
        self._order: list[tuple[int, float, float, bool, int, NodeT]] = []
        self._due: list[tuple[float, int, NodeT]] = []
        self._tickets = 0

    def __len__(self) -> int:
        return max(len(self._order), len(self._due))

    def ticket(self) -> int:
        """Return a new ticket, which makes its node's older entries invalid."""
        self._tickets += 1
        return self._tickets

    def put(self, node: NodeT, ticket: int, place: tuple[int, float, float, bool], until: float) -> None:
        """Queue a node at this place, which holds until the time `until`."""
        heappush(self._order, (*place, ticket, node))
        if until < inf:
            heappush(self._due, (until, ticket, node))

    def compact(self, most_entries: int) -> None:
        """Remove invalid entries if there are more than this: amortised by the calls of `put`."""
        if len(self) > most_entries:
            self._order = [entry for entry in self._order if self._is_valid(*entry[4:])]
            self._due = [entry for entry in self._due if self._is_valid(*entry[1:])]
            heapify(self._order)
            heapify(self._due)

    def due(self, now: float) -> NodeT | None:
        """Remove and return a node whose place no longer holds. Put it again."""
        while self._due and self._due[0][0] <= now:
            _, ticket, node = heappop(self._due)
            if self._is_valid(ticket, node):
                return node
        return None

    def first(self) -> NodeT | None:
        """Return what is evicted next."""
        while self._order:
            *_, ticket, node = self._order[0]
            if self._is_valid(ticket, node):
                return node
            heappop(self._order)
        return None

    def drop_first(self) -> None:
        heappop(self._order)
