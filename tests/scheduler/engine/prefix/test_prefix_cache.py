"""What the prefix cache holds, finds and evicts: a sentence for each rule."""

from __future__ import annotations

import pytest

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.shared.reports import PrefixReport
from scheduler.shared.token_ids import KEY_BYTES
from tests.scheduler.engine.prefix.cached_prompts import PLENTY, TOKEN_BYTES, cache_of, keep, serve, words
from tests.scheduler.engine.prefix.test_radix_tree import (
    RUN_BYTES,
    Run,
    State,
    at,
    content_of,
    cut_of,
    python_lines,
)


def test_an_exact_repeat_leaves_one_token_to_compute() -> None:
    """There must be a forward pass to sample from; a prompt of one token finds nothing."""
    cache = cache_of()
    keep(cache, words(0, 500))
    for tokens, found in ((500, 499), (501, 500), (1, 0), (0, 0)):
        assert cache.match_and_lease(at(words(0, tokens))).length == found


def test_thirty_two_conversations_on_one_prefix_hold_one_prefix() -> None:
    """4096 tokens once, and each tail; operators see the shared prefix, its references and its hits."""
    cache = cache_of()
    shared_prefix = words(0, 4096)
    for agent in range(32):
        assert serve(cache, shared_prefix + words(10_000 + 200 * agent, 200)) == (4096 if agent else 0)
    held = cache.statistics()
    assert held.tokens == 4096 + 32 * 200
    assert held.nodes == 33
    assert cache.nbytes == held.tokens * TOKEN_BYTES
    assert cache.statistics().shared_prefixes[0] == PrefixReport(tokens=4096, references=32, hits=31, head=[])


def test_a_branch_never_destroys_a_longer_prefix() -> None:
    """exo lost 4000 of 6000 tokens to a title of the same session that shared 2000. Here both stay, and the
    longer one is not marked to go first."""
    cache = cache_of()
    long, title = words(0, 6000), words(0, 2000) + words(50_000, 15)
    serve(cache, long, session="s")
    assert serve(cache, title, session="s") == 2000
    assert cache.find(at(long)).length == 5999
    assert cache.find(at(title)).length == 2014
    cache.set_running_bytes((PLENTY - 5000) * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_what_a_split_leaves_of_an_edge_in_use_can_be_evicted() -> None:
    """A lease on the beginning of an edge keeps all of it until another prompt splits it behind the lease."""
    cache = cache_of()
    keep(cache, words(0, 100))
    lease = cache.match_and_lease(at(words(0, 51)))
    assert cache.evict(TOKEN_BYTES) == 0
    keep(cache, words(0, 60) + words(1000, 5))
    assert cache.check_integrity() == []
    assert cache.evict(PLENTY) == (40 + 5) * TOKEN_BYTES
    cache.release(lease)


def test_a_shorter_branch_of_a_long_conversation_costs_nothing() -> None:
    """A prompt that is the beginning of what is held is not stored twice, and not even split."""
    cache = cache_of()
    keep(cache, words(0, 6000))
    assert keep(cache, words(0, 2000)) == 0
    assert (cache.statistics().nodes, cache.statistics().tokens) == (1, 6000)
    assert cache.find(at(words(0, 6000))).length == 5999


def test_salts_isolate() -> None:
    """One tenant's prefix is another tenant's miss, also in what is counted and cleared by name."""
    cache = cache_of()
    cache.insert(at(words(0, 100), "red"), cut_of(words(0, 100)))
    assert [cache.find(at(words(0, 100), salt)).length for salt in ("red", "blue")] == [99, 0]
    cache.insert(at(words(0, 100), "blue"), cut_of(words(0, 100)))
    assert cache.statistics().tokens == 200


def test_what_fits_is_stored_shallow_first() -> None:
    """A prompt larger than the room keeps its beginning, so that a retry resumes there."""
    cache = cache_of(100)
    asked = []

    def cut(start: int, end: int) -> Run:
        asked.append((start, end))
        return Run(tuple(words(start, end - start)))

    assert cache.insert(at(words(0, 1000)), cut) == 100 * TOKEN_BYTES
    assert cache.insert(at(words(0, 1000)), cut) == 0
    assert asked == [(0, 100)]
    assert cache.find(at(words(0, 1000))).length == 100


def test_segments_larger_than_announced_do_not_burst_the_budget() -> None:
    """Sizes are measured after the cut, and the excess goes immediately; nothing added is reported then."""
    cache = cache_of(10)
    tokens = words(0, 10)
    assert cache.insert(at(tokens), cut_of(tokens, grain=64)) == 0
    assert cache.nbytes == 0
    assert cache.check_integrity() == []


def test_halves_that_are_larger_than_the_whole_do_not_burst_the_budget() -> None:
    """Buffers are rounded up; a cut that costs more makes room immediately, also when a lookup makes it."""
    cache = cache_of(8)
    tokens = words(0, 8)
    cache.insert(at(tokens), cut_of(tokens, grain=4))
    lease = cache.match_and_lease(at(words(0, 3) + words(100, 9)))
    assert (lease.length, cache.nbytes) == (3, 4 * RUN_BYTES + 3 * KEY_BYTES)
    assert cache.check_integrity() == []


def test_running_requests_come_first() -> None:
    """Their bytes are taken from the cache's room immediately, but never from under a lease; when that is
    released, what was over goes."""
    cache = cache_of(300)
    keep(cache, words(0, 100))
    lease = cache.match_and_lease(at(words(0, 100)))
    keep(cache, words(1000, 100))
    cache.set_running_bytes(280 * TOKEN_BYTES)
    assert (cache.room, cache.nbytes) == (20 * TOKEN_BYTES, 100 * TOKEN_BYTES)
    assert content_of(lease) == list(range(99))
    assert keep(cache, words(2000, 5)) == 0
    cache.release(lease)
    assert cache.nbytes == 0
    cache.set_running_bytes(0)
    assert keep(cache, words(2000, 5)) == 5 * TOKEN_BYTES


def test_no_budget_is_a_cache_turned_off() -> None:
    """Lookups miss, nothing is stored or cut, nothing complains."""
    cache = cache_of(0, needs_snapshot=True)
    assert serve(cache, words(0, 100), session="s") == 0
    assert not cache.attach(at(words(0, 100)), State(()))
    cache.set_running_bytes(1000)
    assert (cache.room, cache.clear()) == (0, 0)
    statistics = cache.statistics()
    assert (statistics.query_tokens, statistics.hit_tokens, statistics.nodes) == (100, 0, 0)
    assert cache.check_integrity() == []


def test_clear_lets_go_of_everything_that_is_not_in_use() -> None:
    """And says how many bytes that was."""
    cache = cache_of()
    keep(cache, words(0, 100))
    keep(cache, words(1000, 100))
    lease = cache.match_and_lease(at(words(0, 60)))
    assert cache.clear() == 100 * TOKEN_BYTES
    assert cache.statistics().evicted_tokens["cleared"] == 100
    cache.release(lease)
    assert cache.clear() == 100 * TOKEN_BYTES
    assert (cache.nbytes, cache.evicted_bytes) == (0, 200 * TOKEN_BYTES)
    keep(cache, words(0, 2000) + words(10_000, 20), "s")
    keep(cache, words(0, 2000) + words(20_000, 30), "s")
    cache.clear()
    assert cache.statistics().evicted_tokens == {"budget": 0, "superseded": 0, "cleared": 200 + 2050}


def test_room_is_made_for_what_a_step_takes() -> None:
    """The budget stays: what is freed once may be filled again."""
    cache = cache_of()
    for start in (0, 1000, 2000):
        keep(cache, words(start, 100))
    lease = cache.match_and_lease(at(words(0, 100)))
    assert cache.evict(1) == 100 * TOKEN_BYTES
    assert cache.evict(PLENTY) == 100 * TOKEN_BYTES, "what is in use stays"
    assert cache.evict(1) == 0
    assert cache.find(at(words(0, 101))).length == 100
    cache.release(lease)
    keep(cache, words(1000, 100))
    assert cache.nbytes == 200 * TOKEN_BYTES


def test_a_cut_that_fails_leaves_no_pin_behind() -> None:
    """What was there can be evicted afterwards as before."""
    cache = cache_of()
    keep(cache, words(0, 100))

    def cut(start: int, end: int) -> Run:
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.insert(at(words(0, 50) + words(1000, 50)), cut, "s")
    assert cache.check_integrity() == []
    assert cache.find(at(words(0, 100))).length == 99
    assert cache.clear() == 100 * TOKEN_BYTES


def test_statistics_tell_no_token() -> None:
    """Counts only: the page that shows them may be open to people who may not read prompts."""
    cache = cache_of()
    secret = 987_654_321
    for _ in range(3):
        serve(cache, words(secret, 20), session="s")
    assert str(secret)[:6] not in repr(cache.statistics())
    assert cache.statistics().shared_prefixes == [PrefixReport(tokens=20, references=1, hits=2, head=[])]


def test_a_long_lookup_is_a_bounded_number_of_python_operations() -> None:
    """Hundred thousand tokens among hundred other conversations cost what their few edges cost."""
    lines = {}
    for tokens in (1_000, 100_000):
        cache = cache_of()
        prompt = words(0, tokens)
        for branch in range(100):
            keep(cache, prompt[: tokens // 2] + words(10**6 + branch, 1))
        keep(cache, prompt)
        lines[tokens], lease = python_lines(cache.match_and_lease, at(prompt))
        assert lease.length == tokens - 1
    assert lines[100_000] <= lines[1_000] + 7 * 5, "twice the tokens are one more bisection at most"
    assert lines[100_000] < 160


def test_an_eviction_is_amortised_logarithmic() -> None:
    """Ten times as many nodes do not cost ten times as much each, and invalid entries do not pile up."""
    cost = {}
    for nodes in (200, 2_000):
        cache = cache_of(nodes * 10)
        for index in range(nodes):
            keep(cache, words(100 * index, 10))
        for index in range(nodes):
            cache.release(cache.match_and_lease(at(words(100 * index, 10))))
        total = 0
        for index in range(nodes, 2 * nodes):
            total += python_lines(keep, cache, words(100 * index, 10))[0]
        cost[nodes] = total / nodes
    assert cost[2_000] < 1.5 * cost[200]
    for _ in range(10_000):
        cache.release(cache.match_and_lease(at(words(100 * 3_999, 10))))
    assert len(cache._queue) <= 64 + 4 * 2_000


def test_integrity_says_what_is_wrong() -> None:
    """An alarm that names the damage; the tree's own complaints are among them."""

    def stored() -> PrefixCache[Run, State]:
        cache = cache_of()
        keep(cache, words(0, 10), "s")
        return cache

    cache = stored()
    cache._tree.tokens = 3
    assert cache.check_integrity() == ["tokens is 3, the tree holds 10"]
    cache = stored()
    cache._queue._order.clear()
    assert cache.check_integrity() == ["node [0, 10) would never be evicted"]
    cache = stored()
    cache._turns.ends.clear()
    assert cache.check_integrity() == ["sessions and turns are not the same"]
    cache = stored()
    cache.budget_bytes = 1
    assert cache.check_integrity() == ["70 bytes exceed the room of 1, and some are evictable"]
    cache = stored()
    cache._marks.clear()
    assert cache.check_integrity() == ["nodes and marks are not the same"]
