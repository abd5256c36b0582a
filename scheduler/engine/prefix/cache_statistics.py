"""The prefix cache's statistics for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Literal, TypeAlias

from scheduler.engine.prefix.nodes import Node, SegmentT, SnapshotT
from scheduler.engine.prefix.radix_tree import CacheSize, RadixTree
from scheduler.engine.prefix.retention import Mark
from scheduler.shared.pins import PinnedPrefix

Reason: TypeAlias = Literal["budget", "superseded", "cleared"]
"""Why an entry was evicted."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A prefix that branches or was hit."""

    tokens: int
    references: int  # Cached continuations.
    hits: int
    head: tuple[int, ...]  # The first token ids, as many as requested.


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """Current contents, and totals since the start."""

    size: CacheSize
    leases: int
    query_tokens: int
    hit_tokens: int
    stored_tokens: int
    evicted_tokens: Mapping[Reason, int]
    evicted_bytes: int
    top_prefixes: tuple[SharedPrefix, ...]
    held_bytes: int = 0  # By requests' and operators' holds.
    refused_holds: int = 0  # Because of the bound on what is held.
    pins: tuple[PinnedPrefix, ...] = ()


def top_prefixes(
    tree: RadixTree[SegmentT, SnapshotT],
    marks: Mapping[Node[SegmentT, SnapshotT], Mark],
    top: int,
    head_tokens: int,
) -> tuple[SharedPrefix, ...]:
    """Return the prefixes with the most hits. O(nodes) unless `top` is 0."""
    shared = [
        (marks[node].hits, node.end, leaves, node)
        for node, leaves in (tree.leaves_below().items() if top else ())
        if len(node.children) > 1 or marks[node].hits
    ]
    best = nlargest(top, shared, key=lambda prefix: prefix[:2])
    return tuple(
        SharedPrefix(tokens, leaves, hits, tree.head(node, head_tokens))
        for hits, tokens, leaves, node in best
    )
