"""Whether a prefix cache's counts, marks, leases and order of eviction are those of its nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from scheduler.engine.prefix.prefix_cache import PrefixCache


def check_integrity(cache: PrefixCache[Any, Any]) -> None:
    tree, queue = cache._tree, cache._queue
    nodes = set(tree.walk())
    assert all(root.children for root in tree._roots.values()), "a salt has no nodes"
    pins = Counter(lease.node for lease in tree.leases)
    queued = {node for *_, ticket, node in queue._order if cache._is_valid(ticket, node)}
    for node in nodes:
        assert node.pins == pins[node]
        assert node.segment.tokens == len(node.tokens) > 0
        assert node.parent is not None
        assert node.parent.end == node.start
        assert (node.parent.children[node.tokens[0]], node.parent.salt) == (node, node.salt)
        if not node.pins and (not node.children or node.snapshot is not None):
            assert node in queued, "it would never be evicted"
    states = [node.snapshot for node in nodes if node.snapshot is not None]
    assert (tree.nodes, tree.snapshots) == (len(nodes), len(states))
    assert tree.tokens == sum(len(node.tokens) for node in nodes)
    assert tree.segment_bytes == sum(node.segment.nbytes for node in nodes)
    assert tree.snapshot_bytes == sum(state.nbytes for state in states)
    held = Counter(id(segment) for lease in tree.leases for segment, _ in lease.pieces)
    assert all(count == held[key] for key, (_, count) in tree._replaced.items())
    assert tree.replaced_bytes == sum(segment.nbytes for segment, _ in tree._replaced.values())
    assert nodes == cache._marks.keys()
    turns = {(key, node) for key, ends in cache._turns.ends.items() for node in ends}
    assert turns == {(key, node) for node in nodes for key in cache._marks[node].turns}
    if cache.nbytes > cache.room or cache._too_many():
        assert cache._victim() is None, "there is too much, and some could go"
