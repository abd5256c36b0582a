"""What a radix tree is made of, and what its callers hold of it: nodes, matches and leases.

The tree (`radix_tree.py`) alone writes to nodes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from scheduler.shared.token_ids import KEY_BYTES


class Segment(Protocol):
    """What was computed for consecutive tokens, in all layers that can be cut anywhere. Never mutated."""

    @property
    def tokens(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    def split(self, at: int) -> tuple[Self, Self]:
        """Return the first `at` tokens and the rest, 0 < at < tokens. Both own their bytes: neither keeps the
        whole alive."""
        ...


class Snapshot(Protocol):
    """The state of layers that cannot be cut, right after one token. Never mutated."""

    @property
    def nbytes(self) -> int: ...


SegmentT = TypeVar("SegmentT", bound=Segment)
SnapshotT = TypeVar("SnapshotT", bound=Snapshot)


class Node(Generic[SegmentT, SnapshotT]):
    """An edge with the position at its end. Only the tree writes to it."""

    __slots__ = ("_segment", "children", "end", "parent", "pins", "salt", "snapshot", "tokens")

    def __init__(
        self,
        salt: str,
        parent: Node[SegmentT, SnapshotT] | None,
        tokens: array[int],
        segment: SegmentT | None,
    ) -> None:
        self.salt = salt
        self.parent = parent  # None at a root, and after removal.
        self.tokens = tokens
        self.end: int = len(tokens) + (0 if parent is None else parent.end)
        self.snapshot: SnapshotT | None = None
        self.children: dict[int, Node[SegmentT, SnapshotT]] = {}
        self.pins = 0  # Leases that end here. The nodes above have a child, so they stay anyway.
        self._segment = segment

    @property
    def start(self) -> int:
        return self.end - len(self.tokens)

    @property
    def segment(self) -> SegmentT:
        """Return what was computed for the edge. Roots and removed nodes have none."""
        assert self._segment is not None, "a root or a removed node has no segment"
        return self._segment

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything that this node holds."""
        snapshot = 0 if self.snapshot is None else self.snapshot.nbytes
        return self.segment.nbytes + snapshot + KEY_BYTES * len(self.tokens)


@dataclass(frozen=True, slots=True)
class Match(Generic[SegmentT, SnapshotT]):
    """The longest common prefix: its nodes from the root down; the last may be taken in part."""

    path: tuple[Node[SegmentT, SnapshotT], ...]
    length: int

    @property
    def inside(self) -> bool:
        """Return whether the match ends before its last node does."""
        return bool(self.path) and self.path[-1].end > self.length

    @property
    def whole(self) -> Node[SegmentT, SnapshotT] | None:
        """Return the deepest node that is matched to its end."""
        path = self.path[:-1] if self.inside else self.path
        return path[-1] if path else None

    @property
    def pieces(self) -> tuple[tuple[SegmentT, int], ...]:
        """Return its segments in order, with the tokens used of each."""
        return tuple((node.segment, self.taken(node)) for node in self.path)

    def until(self, length: int) -> Match[SegmentT, SnapshotT]:
        """Return its first `length` tokens."""
        return Match(tuple(node for node in self.path if node.start < length), length)

    def taken(self, node: Node[SegmentT, SnapshotT]) -> int:
        """Return how many of a path node's tokens the match takes."""
        return min(node.end, self.length) - node.start

    def restorable(self) -> Match[SegmentT, SnapshotT]:
        """Return the same match up to its deepest snapshot."""
        for count, node in zip(range(len(self.path), 0, -1), reversed(self.path), strict=True):
            if node.snapshot is not None and node.end <= self.length:
                return Match(self.path[:count], node.end)
        return Match((), 0)


@dataclass(slots=True, eq=False)
class Known(Generic[SegmentT, SnapshotT]):
    """The tokens of one sequence, and how far they are known to be in the tree: each lookup compares only the
    others, and notes how far it came. It keeps nothing from eviction."""

    tokens: array[int]
    """They may grow."""
    salt: str
    node: Node[SegmentT, SnapshotT] | None = None
    """The deepest node that was matched to its end."""

    @property
    def reached(self) -> Node[SegmentT, SnapshotT] | None:
        """Return that node, unless it was removed."""
        return self.node if self.node is not None and self.node.parent is not None else None


@dataclass(slots=True, eq=False)
class Lease(Generic[SegmentT, SnapshotT]):
    """A prefix in use. Until it is released, its segments must be neither mutated nor evicted."""

    length: int
    pieces: tuple[tuple[SegmentT, int], ...]  # In order, with the tokens used of each.
    snapshot: SnapshotT | None  # The state at `length`, if one is kept there.
    node: Node[SegmentT, SnapshotT] | None  # Where it ends; None when nothing matched.
