"""States of layers that cannot be cut: where they are kept, and when they are evicted."""

from __future__ import annotations

from scheduler.engine.prefix.retention import Retention
from tests.scheduler.engine.prefix.cached_prompts import TOKEN_BYTES, State, at, cache_of, keep, words


def test_snapshots_of_a_path_are_bounded_and_spread() -> None:
    """A long conversation keeps the place that others came back to and the newest; what goes is where
    they lie dense."""
    cache = cache_of(needs_snapshot=True, retention=Retention(snapshots_per_path=4))
    tokens = words(0, 5000)
    keep(cache, tokens)
    cache.attach(at(tokens[:1500]), State(()))
    cache.attach(at(tokens[:1600]), State(()))
    for _ in range(2):
        cache.release(cache.match_and_lease(at(tokens[:1650])))
    for position in range(1700, 5000, 300):
        assert cache.attach(at(tokens[:position]), State(())), "the deepest is what the next turn needs"
    kept = [node.end for node in cache._tree.walk() if node.snapshot is not None]
    assert len(kept) == 4
    assert {1600, 4700} < set(kept)
    assert not {1500, 1700} & set(kept)
    assert not cache.attach(at(tokens[:1590]), State(())), "one more between two is worth the least"


def test_a_snapshot_at_a_fork_outlives_its_neighbours() -> None:
    """However dense they lie: two conversations part there, and a third would."""
    cache = cache_of(needs_snapshot=True, retention=Retention(snapshots_per_path=3))
    for tail in (1000, 2000):
        keep(cache, words(0, 100) + words(tail, 200))
    tokens = words(0, 100) + words(1000, 200)
    for position in (90, 100, 110, 300):
        assert cache.attach(at(tokens[:position]), State(()))
    assert {node.end for node in cache._tree.walk() if node.snapshot is not None} == {100, 110, 300}


def test_a_snapshot_that_does_not_fit_is_not_kept() -> None:
    """And the tokens that it belongs to are not evicted for it."""
    cache = cache_of(10, needs_snapshot=True)
    keep(cache, words(0, 10))
    assert not cache.attach(at(words(0, 10)), State((), nbytes=1))
    assert cache.statistics().tokens == 10


def test_tokens_that_no_hit_can_restore_go_first() -> None:
    """In a model that needs snapshots, what lies beyond the last one is dead weight."""
    cache = cache_of(400, needs_snapshot=True)
    keep(cache, words(0, 100))
    cache.attach(at(words(0, 100)), State((), nbytes=0))
    keep(cache, words(1000, 200))
    keep(cache, words(2000, 200))
    assert cache.find(at(words(0, 101))).length == 100
    assert cache.statistics().tokens == 300


def test_old_snapshots_in_the_middle_go_before_the_newest_turn() -> None:
    """A conversation is not eaten from its useful end: a middle snapshot that nobody used is cheaper."""
    cache = cache_of(200, needs_snapshot=True)
    keep(cache, words(0, 100))
    for position in (50, 100):
        assert cache.attach(at(words(0, position)), State((), nbytes=40 * TOKEN_BYTES))
    cache.release(cache.match_and_lease(at(words(0, 101))))
    keep(cache, words(1000, 50))
    assert cache.find(at(words(0, 101))).length == 100
    assert cache.find(at(words(0, 60))).length == 0


def test_snapshots_in_the_middle_age_like_everything_else() -> None:
    """With their turn, or from when they were last restored; they go before a leaf of the same age, and
    after an older one."""
    cache = cache_of(1000, needs_snapshot=True)
    for start in (0, 1000, 2000):
        keep(cache, words(start, 100))
        for position in (50, 100) if start else (100,):
            size = 50 * TOKEN_BYTES
            assert cache.attach(at(words(start, position)), State((), nbytes=size))
    for length in (101, 60):  # Of the two conversations the older one, restored at its end and in its middle.
        cache.release(cache.match_and_lease(at(words(1000, length))))
    cache.set_running_bytes(500 * TOKEN_BYTES)
    assert [cache.find(at(words(start, 101))).length for start in (0, 1000, 2000)] == [0, 100, 100]
    assert [cache.find(at(words(start, 60))).length for start in (1000, 2000)] == [50, 50]
    cache.set_running_bytes(650 * TOKEN_BYTES)
    assert [cache.find(at(words(start, 60))).length for start in (1000, 2000)] == [50, 0]
    assert [cache.find(at(words(start, 101))).length for start in (1000, 2000)] == [100, 100]


def test_a_snapshot_is_kept_once_and_only_where_it_helps() -> None:
    """Not twice at one position, not where its tokens are not held, not for a model that can be cut."""
    cache = cache_of(needs_snapshot=True)
    keep(cache, words(0, 10))
    kept = [cache.attach(at(words(0, end)), State(())) for end in (5, 5, 11, 0)]
    assert kept == [True, False, False, False]
    assert cache.statistics().snapshots == 1
    plain = cache_of()
    keep(plain, words(0, 10))
    assert not plain.attach(at(words(0, 5)), State(()))
