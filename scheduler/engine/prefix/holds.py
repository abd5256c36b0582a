"""What clients and operators asked to keep for a time, or until it is released: the bound on it, and when it
ends."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic

from scheduler.engine.prefix.nodes import Known, Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import Mark
from scheduler.shared.adapter_files import tenant_of
from scheduler.shared.pins import MOST_PINS, Pin, pin_name
from scheduler.shared.reports import PinReport

NO_CACHE = "this engine has no prefix cache"
_NOTHING = "nothing of it is cached: the prefix cache has no room for it"
NO_ROOM = "the prefix cache has no room for it"


@dataclass(frozen=True, slots=True)
class HoldOutcome:
    """True where it is held."""

    refusal: str = ""
    """Why it is not held, a sentence for the operator; empty if it is."""

    def __bool__(self) -> bool:
        return not self.refusal


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
        self._pins: dict[str, Pin] = {}
        self._ends: list[tuple[float, int, Mark]] = []
        self._entries = 0
        self._most = 64

    def hold(
        self, end: Node[SegmentT, SnapshotT] | None, tokens: array[int], until: float, room: int
    ) -> HoldOutcome:
        """Hold the path to `end`, which is what is cached of `tokens`, if anything is. With an infinite
        `until` it is pinned, as a whole or not at all. No more than `room` bytes are held, nor MOST_PINS
        pinned. The tenant that holds most yields to one that would hold less."""
        if end is None:
            return HoldOutcome(_NOTHING)
        if refusal := self._pin_refusal(end, tokens) if until == inf else "":
            self.refused += 1
            return HoldOutcome(refusal)
        new = sum(nbytes for mark, nbytes in self._path(end) if not mark.held_bytes)
        for node in self._yielding(tenant_of(end.salt), new, room):
            self.end(self._marks[node])
            self._file(node)
        if not self.begin(self._path(end), until, room):
            return HoldOutcome(
                f"its {new} bytes and the {self.nbytes} that are held already are more than {room}, which is"
                " what may be held of the prefix cache now"
            )
        if until == inf:
            self._pins[pin_name(tokens, end.salt)] = Pin(end.salt, tokens)
        self._file(end)
        return HoldOutcome()

    def _yielding(self, tenant: str, new: int, room: int) -> list[Node[SegmentT, SnapshotT]]:
        """Return other tenants' nodes whose holds, ended, make room for `new` bytes of `tenant`: of whoever
        holds most, those that end first. None, if they would not. Pins are the operator's, and stay."""
        ended = list[Node[SegmentT, SnapshotT]]()
        if (lacking := self.nbytes + new - room) <= 0:
            return ended
        holders = [one for one, mark in self._marks.items() if mark.held_bytes and mark.held_until < inf]
        held = Counter[str]()
        for node in holders:
            held[tenant_of(node.salt)] += self._marks[node].held_bytes
        # A path's nodes are held for no longer than those above them: its end goes first.
        holders.sort(key=lambda node: (self._marks[node].held_until, -node.end), reverse=True)
        while lacking > 0:
            most = max(held, key=lambda one: held[one], default=tenant)
            if held[most] <= held[tenant] + new:
                return []
            node = next(one for one in reversed(holders) if tenant_of(one.salt) == most)
            holders.remove(node)
            held[most] -= self._marks[node].held_bytes
            lacking -= self._marks[node].held_bytes
            ended.append(node)
        return ended

    def _pin_refusal(self, end: Node[SegmentT, SnapshotT], tokens: array[int]) -> str:
        # No hit is longer than all but the last token, which has to be computed.
        if end.end < len(tokens) - 1:
            cached = f"only {end.end} of its {len(tokens)} tokens are cached"
            return f"{cached}: the prefix cache has no room for more"
        if len(self._pins) >= MOST_PINS and pin_name(tokens, end.salt) not in self._pins:
            return f"{MOST_PINS} prompts are pinned already, and no engine pins more"
        return ""

    def unpin(self, name: str) -> bool:
        """Release a pin; a time for which its nodes were to be kept ends, too. Return False for an unknown
        name."""
        if (pin := self._pins.pop(name, None)) is None:
            return False
        self._release(pin)
        for other in self._pins.values():  # They may begin alike.
            if (end := self._tree.match(Known(other.tokens, other.salt)).whole) is not None:
                self.begin(self._path(end), inf, sys.maxsize)
                self._file(end)
        return True

    def clear_pins(self) -> None:
        for pin in self._pins.values():
            self._release(pin)
        self._pins.clear()

    def _release(self, pin: Pin) -> None:
        for node in self._tree.match(Known(pin.tokens, pin.salt)).path:
            if self._marks[node].held_until == inf:
                self.end(self._marks[node])
                self._file(node)

    def pins(self) -> list[PinReport]:
        return [
            PinReport(name, len(pin.tokens), self._tree.match(Known(pin.tokens, pin.salt)).length)
            for name, pin in self._pins.items()
        ]

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
