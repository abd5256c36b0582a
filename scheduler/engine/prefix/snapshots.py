"""Which of a path's snapshots is needed least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.engine.prefix.nodes import Node, SegmentT, SnapshotT
from scheduler.engine.prefix.retention import Mark


def least_needed(
    path: Sequence[Node[SegmentT, SnapshotT]],
    marks: Mapping[Node[SegmentT, SnapshotT], Mark],
    protecting_hits: int,
) -> Node[SegmentT, SnapshotT]:
    """Return the least needed of a path's nodes with snapshots, shallow first: what was not hit again before
    what was, by the smallest gap that it leaves; the deepest, which the next turn needs, last."""

    def is_reused(node: Node[SegmentT, SnapshotT]) -> bool:
        return len(node.children) > 1 or marks[node].snapshot_hits >= protecting_hits

    ends = [0, *(held.end for held in path)]
    gaps = {held: ends[i + 2] - ends[i] for i, held in enumerate(path[:-1])}
    free = [held for held in path if not held.pins]
    plain = [held for held in free if not is_reused(held)]
    return min(plain or free, key=lambda held: gaps.get(held, held.end))
