"""Which nodes sessions' newest turns end at, and what a newer turn supersedes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic

from scheduler.engine.prefix.nodes import Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import Mark, Retention, SessionKey


class SessionTurns(Generic[SegmentT, SnapshotT]):
    """The ends of sessions' newest turns, bounded by `retention` in sessions and in branches of each: the
    longest silent goes.

    `file` is called with every node whose mark changed.
    """

    def __init__(
        self,
        tree: RadixTree[SegmentT, SnapshotT],
        marks: dict[Node[SegmentT, SnapshotT], Mark],
        retention: Retention,
        file: Callable[[Node[SegmentT, SnapshotT]], None],
    ) -> None:
        self._tree = tree
        self._marks = marks
        self._retention = retention
        self._file = file
        self.ends: OrderedDict[SessionKey, list[Node[SegmentT, SnapshotT]]] = OrderedDict()

    def supersede(
        self, key: SessionKey, end: Node[SegmentT, SnapshotT] | None, length: int, system_tokens: int
    ) -> None:
        """Let a turn of `length` tokens, cached up to `end`, supersede the session's older turns. An older
        turn that is longer, or shares only the system prompt, is a branch: both stay."""
        path = set() if end is None else {end, *self._tree.parents(end)}
        for old in tuple(self.ends.get(key, ())):
            above = (old, *self._tree.parents(old))
            common = next((node.end for node in above if node in path), 0)
            good = common > system_tokens and self._retention.continues(common, length, system_tokens)
            if old not in path and not (good and length >= old.end):
                continue
            self.forget(key, old)
            for node in above:  # Not what others use, nor what is above that.
                used = node in path or node.pins or self._marks[node].turns
                if used or not all(self._marks[child].superseded for child in node.children.values()):
                    break
                self._marks[node].superseded = True
                self._file(node)

    def remember(self, key: SessionKey, end: Node[SegmentT, SnapshotT]) -> None:
        turns = self.ends.setdefault(key, [])
        self.ends.move_to_end(key)
        if end not in turns:
            turns.append(end)
            self._marks[end].turns.add(key)
        if len(turns) > self._retention.branches_per_session:
            self.forget(key, turns[0])
        if len(self.ends) > self._retention.sessions:
            oldest, ends = next(iter(self.ends.items()))
            for node in tuple(ends):
                self.forget(oldest, node)

    def forget(self, key: SessionKey, node: Node[SegmentT, SnapshotT]) -> None:
        self._marks[node].turns.remove(key)
        self.ends[key].remove(node)
        if not self.ends[key]:
            del self.ends[key]
