"""A radix tree over token ids: which tokens are cached, what was computed for them, and what is leased.

One tree per salt under one object; its nodes are in `nodes.py`. An edge owns what was computed for its own
tokens (a `Segment`) and may carry a `Snapshot` (the state right after its last token, which cannot be cut). A
lease keeps its path: only leaves are removed, and never a leased one. The tree knows no budget, no recency
and no device: `prefix_cache.py`, its only caller, makes every decision, and nothing here reads an array.
Tokens are kept in `array("I")`; runs are compared slice by slice, so that the number of Python operations
grows with the edges of a path and the logarithm of the tokens, never with the tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Generic

from scheduler.engine.prefix.nodes import Known, Lease, Match, Node, SegmentT, SnapshotT
from scheduler.shared.token_ids import KEY_BYTES, common_run

OnSplit = Callable[[Node[SegmentT, SnapshotT], Node[SegmentT, SnapshotT]], None]
"""Called with (upper, lower): `upper` is new, `lower` is the node that was there."""


class RadixTree(Generic[SegmentT, SnapshotT]):
    """The counters are exact after every operation, also after one that raised."""

    def __init__(self, on_split: OnSplit[SegmentT, SnapshotT] | None = None) -> None:
        self._roots: dict[str, Node[SegmentT, SnapshotT]] = {}
        self._on_split = on_split
        self.leases: set[Lease[SegmentT, SnapshotT]] = set()
        # By id: the segment and how many leases hold it.
        self._replaced: dict[int, tuple[SegmentT, int]] = {}
        self.nodes = 0
        self.tokens = 0
        self.segment_bytes = 0
        self.snapshots = 0
        self.snapshot_bytes = 0
        self.replaced_bytes = 0
        """Bytes of segments split while leased, which leases may still hold whole."""

    @property
    def nbytes(self) -> int:
        return self.segment_bytes + self.snapshot_bytes + self.replaced_bytes + KEY_BYTES * self.tokens

    def match(
        self, known: Known[SegmentT, SnapshotT], limit: int | None = None
    ) -> Match[SegmentT, SnapshotT]:
        """Return the longest prefix of the first `limit` tokens that is held. Changes nothing but `known`."""
        key = known.tokens
        limit = len(key) if limit is None else min(limit, len(key))
        path, node, position = list[Node[SegmentT, SnapshotT]](), self._roots.get(known.salt), 0
        if (deepest := known.reached) is not None:
            path = [one for one in (deepest, *self.parents(deepest)) if one.start < limit][::-1]
            if path:
                node, position = path[-1], min(path[-1].end, limit)
        while node is not None and position < limit and node.end == position:
            if (node := node.children.get(key[position])) is not None:
                path.append(node)
                position += common_run(key, position, node.tokens, min(len(node.tokens), limit - position))
        match = Match(tuple(path), position)
        if deepest is None or deepest.end <= limit:
            known.node = match.whole
        return match

    def boundary(self, match: Match[SegmentT, SnapshotT]) -> Node[SegmentT, SnapshotT] | None:
        """Return the node that ends where the (fresh) match ends, split if needed; None at position 0."""
        if not match.inside:
            return match.path[-1] if match.path else None
        return self._split(match.path[-1], match.taken(match.path[-1]))

    def insert(
        self, known: Known[SegmentT, SnapshotT], cut: Callable[[int, int], SegmentT], end: int | None = None
    ) -> Node[SegmentT, SnapshotT]:
        """Insert the first `end` tokens; return the node with the last of them (it may reach further).

        `cut(start, end)` is called once for the missing tail, or not at all. If it raises, nothing has
        changed.
        """
        end = len(known.tokens) if end is None else end
        assert end, "an empty prefix has no node"
        match = self.match(known, end)
        if match.length == end:
            return match.path[-1]
        segment = cut(match.length, end)
        assert segment.tokens == end - match.length, "cut returned the wrong length"
        parent = self.boundary(match)
        if parent is None:
            parent = self._roots.setdefault(known.salt, Node(known.salt, None, array("I"), None))
        node = Node(known.salt, parent, known.tokens[match.length : end], segment)
        parent.children[node.tokens[0]] = node
        self.nodes += 1
        self.tokens += len(node.tokens)
        self.segment_bytes += segment.nbytes
        known.node = node
        return node

    def attach(
        self, known: Known[SegmentT, SnapshotT], snapshot: SnapshotT, end: int | None = None
    ) -> Node[SegmentT, SnapshotT] | None:
        """Attach the state right after the first `end` tokens. Return None, with nothing changed, if these
        tokens are not all cached or have a snapshot already."""
        end = len(known.tokens) if end is None else end
        match = self.match(known, end)
        node = None if match.length < end else self.boundary(match)
        if node is None or node.snapshot is not None:
            return None
        node.snapshot = snapshot
        self.snapshots += 1
        self.snapshot_bytes += snapshot.nbytes
        return node

    def detach(self, node: Node[SegmentT, SnapshotT]) -> int:
        """Drop a node's snapshot, if it has one. Return its bytes."""
        if node.snapshot is None:
            return 0
        freed, node.snapshot = node.snapshot.nbytes, None
        self.snapshots -= 1
        self.snapshot_bytes -= freed
        return freed

    def remove(self, node: Node[SegmentT, SnapshotT]) -> None:
        """Remove a leaf and all that it holds; a salt is removed with its last node."""
        assert not node.children, "only a leaf can be removed"
        assert not node.pins, "a leased path cannot be removed"
        assert node.parent is not None, "a root or a removed node cannot be removed"
        parent = node.parent
        self.detach(node)
        self.nodes -= 1
        self.tokens -= len(node.tokens)
        self.segment_bytes -= node.segment.nbytes
        del parent.children[node.tokens[0]]
        # Drop the references, so that its bytes are free now, even if something still refers to the node.
        node.parent, node._segment, node.tokens = None, None, array("I")
        if parent.parent is None and not parent.children:
            del self._roots[node.salt]

    def lease(self, match: Match[SegmentT, SnapshotT]) -> Lease[SegmentT, SnapshotT]:
        """Keep a (fresh) match until `release`."""
        node = match.path[-1] if match.path else None
        snapshot = None if node is None or match.inside else node.snapshot
        lease = Lease(match.length, match.pieces, snapshot, node)
        if node is not None:
            node.pins += 1
        self.leases.add(lease)
        return lease

    def release(self, lease: Lease[SegmentT, SnapshotT]) -> None:
        """End a lease. It is empty afterwards, so that it keeps no bytes alive."""
        assert lease in self.leases, "a lease is released once, to the tree that made it"
        self.leases.remove(lease)
        for segment, _ in lease.pieces:
            if (replaced := self._replaced.pop(id(segment), None)) is not None:
                if replaced[1] > 1:
                    self._replaced[id(segment)] = (segment, replaced[1] - 1)
                else:
                    self.replaced_bytes -= segment.nbytes
        if lease.node is not None:
            lease.node.pins -= 1
        lease.pieces, lease.snapshot, lease.node = (), None, None

    def parents(self, node: Node[SegmentT, SnapshotT]) -> Iterator[Node[SegmentT, SnapshotT]]:
        """Yield the nodes above, the nearest first, without the root."""
        above = node.parent
        while above is not None and above.parent is not None:
            yield above
            above = above.parent

    def head(self, node: Node[SegmentT, SnapshotT], limit: int) -> tuple[int, ...]:
        """Return the first `limit` tokens of the path to a node's end."""
        tokens: array[int] = array("I")
        for passed in reversed((node, *self.parents(node))):
            tokens.extend(passed.tokens[: limit - len(tokens)] if len(tokens) < limit else ())
        return tuple(tokens)

    def walk(self, top: Node[SegmentT, SnapshotT] | None = None) -> Iterator[Node[SegmentT, SnapshotT]]:
        """Yield `top` and all below it (or all nodes), each after its parent. No recursion: chains are
        long."""
        if top is None:
            pending = [node for root in self._roots.values() for node in root.children.values()]
        else:
            pending = [top]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def leaves_below(self) -> dict[Node[SegmentT, SnapshotT], int]:
        """Return every node with the number of leaves below it, itself included if it is one."""
        leaves = {node: int(not node.children) for node in self.walk()}
        for node in reversed(leaves):
            if node.parent in leaves:
                leaves[node.parent] += leaves[node]
        return leaves

    def fullest_path(self, node: Node[SegmentT, SnapshotT]) -> list[Node[SegmentT, SnapshotT]]:
        """Return the nodes with snapshots on the path through `node` that has most of them, shallow first."""
        counts = {node: 0}
        for below in self.walk(node):
            for child in below.children.values():
                counts[child] = counts[below] + (child.snapshot is not None)
        deepest = max(counts, key=counts.__getitem__)
        path = [held for held in (deepest, *self.parents(deepest)) if held.snapshot is not None]
        return path[::-1]

    def _split(self, node: Node[SegmentT, SnapshotT], at: int) -> Node[SegmentT, SnapshotT]:
        """Cut an edge in two and return the upper one. The lower keeps its identity and its snapshot.

        parent -- abcdef --> node      becomes      parent -- abc --> upper -- def --> node
        """
        whole, parent = node.segment, node.parent
        assert parent is not None
        head, tail = whole.split(at)
        assert (head.tokens, tail.tokens) == (at, len(node.tokens) - at), "a split lost tokens"
        upper = Node(node.salt, parent, node.tokens[:at], head)
        parent.children[upper.tokens[0]] = upper
        node.parent, node.tokens, node._segment = upper, node.tokens[at:], tail
        upper.children[node.tokens[0]] = node
        self.nodes += 1
        self.segment_bytes += head.nbytes + tail.nbytes - whole.nbytes
        holders = [lease for lease in self.leases if any(piece is whole for piece, _ in lease.pieces)]
        if holders:
            self._replaced[id(whole)] = (whole, len(holders))
            self.replaced_bytes += whole.nbytes
        for lease in self.leases:
            if lease.node is node and lease.length <= upper.end:  # It uses nothing of the lower part.
                lease.node, upper.pins, node.pins = upper, upper.pins + 1, node.pins - 1
        if self._on_split is not None:
            self._on_split(upper, node)
        return upper
