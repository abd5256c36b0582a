"""How many device allocations the prefix cache holds, where the device limits them (Metal: 499,000)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.prefix.retention import BufferBound
from tests.scheduler.engine.prefix.cached_prompts import cache_of, keep, words
from tests.scheduler.engine.prefix.test_radix_tree import State, at, cut_of

_LAYERS_BUFFERS = 4
"""Keys and values of two layers."""


def _bound(nodes: int, of_snapshot: int = 0) -> BufferBound:
    return BufferBound(_LAYERS_BUFFERS * nodes, _LAYERS_BUFFERS, of_snapshot)


def test_the_least_recently_used_go_when_there_are_too_many_whatever_their_size() -> None:
    """Bytes would be left for a million tokens; the third of three nodes takes the first one's place."""
    cache = cache_of(buffers=_bound(2))
    for start in (0, 1000, 2000):
        keep(cache, words(start, 10))
    assert cache.statistics().nodes == 2
    assert [cache.find(at(words(start, 10))).length for start in (0, 1000, 2000)] == [0, 9, 9]
    assert cache.statistics().evicted_tokens["budget"] == 10


_OPERATIONS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.booleans(), st.booleans()), max_size=30
)


@settings(deadline=None)
@given(operations=_OPERATIONS, nodes=st.integers(0, 6), of_snapshot=st.integers(0, 9))
def test_never_more_than_the_bound(
    operations: list[tuple[list[int], bool, bool]], nodes: int, of_snapshot: int
) -> None:
    """After any lookups, insertions and states that nobody leases any more."""
    bound = _bound(nodes, of_snapshot)
    cache = cache_of(needs_snapshot=of_snapshot > 0, buffers=bound)
    for tokens, looked_up, attached in operations:
        if looked_up:
            cache.release(cache.match_and_lease(at(tokens)))
        cache.insert(at(tokens), cut_of(tokens))
        if attached:
            cache.attach(at(tokens), State(()))
        size = cache.statistics()
        assert not bound.exceeded(size.nodes, size.snapshots)
        assert cache.check_integrity() == []
