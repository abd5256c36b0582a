"""What clients and operators asked to keep for a time: the bound on it, and when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import Generic

from scheduler.engine.prefix.nodes import Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import Mark
from scheduler.shared.adapter_files import tenant_of

NO_CACHE = "this engine has no prefix cache"
_NOTHING = "nothing of it is cached: the prefix cache has no room for it"
NO_ROOM = "the prefix cache has no room for it"


class Holds(Generic[SegmentT, SnapshotT]):
    """Counts the bytes that are held. A mark's `held_until` and `held_bytes` are written here alone.

    `file` is called with every node whose place in the order of eviction changed."""

    def __init__(
        self,
        tree: RadixTree[SegmentT, SnapshotT],
        marks: Mapping[Node[SegmentT, SnapshotT], Mark],
        file: Callable[[Node[SegmentT, SnapshotT]], None],
    ) -> None:
        self.nbytes = 0
        self.refused = 0
        self._tree = tree
        self._marks = marks
        self._file = file
        self._ends: list[tuple[float, int, Mark]] = []
        self._entries = 0
        self._most = 64

    def hold(self, end: Node[SegmentT, SnapshotT] | None, until: float, room: int) -> str:
        """Hold the path to `end`, which is what is cached of a prompt, if anything is. No more than `room`
        bytes are held: the tenant that holds most yields to one that would hold less. Return why it is not
        held, a sentence for the operator, or an empty string."""
        if end is None:
            return _NOTHING
        new = sum(nbytes for mark, nbytes in self._path(end) if not mark.held_bytes)
        for node in self._yielding(tenant_of(end.salt), new, room):
            self.end(self._marks[node])
            self._file(node)
        if not self.begin(self._path(end), until, room):
            return (
                f"its {new} bytes and the {self.nbytes} that are held already are more than {room}, which is"
                " what may be held of the prefix cache now"
            )
        self._file(end)
        return ""

    def _yielding(self, tenant: str, new: int, room: int) -> list[Node[SegmentT, SnapshotT]]:
        """Return other tenants' nodes whose holds, ended, make room for `new` bytes of `tenant`: of the one
        that holds most, those that end first. None, if they would not."""
        ended = list[Node[SegmentT, SnapshotT]]()
        if (lacking := self.nbytes + new - room) <= 0 or not tenant:
            return ended
        holders: dict[str, list[Node[SegmentT, SnapshotT]]] = {}
        held = Counter[str]()
        for node, mark in self._marks.items():
            if mark.held_bytes:
                holders.setdefault(holder := tenant_of(node.salt), []).append(node)
                held[holder] += mark.held_bytes
        own_bytes = held.pop(tenant, 0) + new
        for holder in held:
            # A path's nodes are held for no longer than those above them: its end goes first.
            holders[holder].sort(key=lambda node: (self._marks[node].held_until, -node.end), reverse=True)
        while lacking > 0:
            most = max(held, key=lambda one: held[one], default="")
            if held[most] <= own_bytes:
                return []
            node = holders[most].pop()
            nbytes = self._marks[node].held_bytes
            held[most] -= nbytes
            lacking -= nbytes
            ended.append(node)
        return ended

    def _path(self, end: Node[SegmentT, SnapshotT]) -> list[tuple[Mark, int]]:
        return [(self._marks[node], node.nbytes) for node in (end, *self._tree.parents(end))]

    def begin(self, pieces: Iterable[tuple[Mark, int]], until: float, room: int) -> bool:
        """Hold these marks' nodes, each with its bytes, until then. Return False, with nothing changed, if
        more than `room` bytes would be held."""
        path = list(pieces)
        more = sum(nbytes for mark, nbytes in path if not mark.held_bytes)
        if self.nbytes + more > room:
            self.refused += 1
            return False
        for mark, nbytes in path:
            fresh = not mark.held_bytes
            mark.held_until = max(mark.held_until, until)
            self._count(mark, max(nbytes, mark.held_bytes))
            if fresh:
                self._push(mark)
        return True

    def split(self, upper: Mark, upper_bytes: int, lower: Mark, lower_bytes: int) -> None:
        """Hold both parts of a node that was cut in two for as long as it was held."""
        if lower.held_bytes:
            upper.held_until = lower.held_until
            self._count(upper, upper_bytes)
            self._count(lower, lower_bytes)
            self._push(upper)

    def end(self, mark: Mark) -> None:
        """Hold a mark's node no longer: its time is over, or it was evicted."""
        self.nbytes -= mark.held_bytes
        mark.held_until, mark.held_bytes = 0.0, 0

    def expire(self, now: float) -> None:
        while self._ends and self._ends[0][0] <= now:
            _, _, mark = heappop(self._ends)
            if mark.held_bytes and mark.held_until > now:
                self._push(mark)
            elif mark.held_bytes:
                self.end(mark)

    def _count(self, mark: Mark, nbytes: int) -> None:
        self.nbytes += nbytes - mark.held_bytes
        mark.held_bytes = nbytes

    def _push(self, mark: Mark) -> None:
        self._entries += 1
        heappush(self._ends, (mark.held_until, self._entries, mark))
        if len(self._ends) > self._most:  # Evicted ones are still in it: amortised by the pushes.
            self._ends = [entry for entry in self._ends if entry[2].held_bytes]
            heapify(self._ends)
            self._most = 64 + 2 * len(self._ends)
