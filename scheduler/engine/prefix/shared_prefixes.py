"""Which cached prefixes are shared, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest

from scheduler.engine.prefix.nodes import Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import RadixTree
from scheduler.engine.prefix.retention import Mark
from scheduler.shared.reports import PrefixReport


def shared_prefixes(
    tree: RadixTree[SegmentT, SnapshotT],
    marks: Mapping[Node[SegmentT, SnapshotT], Mark],
    top: int,
    head_tokens: int,
) -> list[PrefixReport]:
    """Return the prefixes that branch or were hit, those with the most hits first. O(nodes) unless `top` is
    0."""
    shared = [
        (marks[node].hits, node.end, leaves, node)
        for node, leaves in (tree.leaves_below().items() if top else ())
        if len(node.children) > 1 or marks[node].hits
    ]
    best = nlargest(top, shared, key=lambda prefix: prefix[:2])
    return [
        PrefixReport(tokens, leaves, hits, list(tree.head(node, head_tokens)))
        for hits, tokens, leaves, node in best
    ]
