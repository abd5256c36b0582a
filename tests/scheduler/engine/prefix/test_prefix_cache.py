"""What the prefix cache holds, finds and evicts: a sentence for each rule."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from scheduler.engine.prefix.retention import BufferBound
from scheduler.shared.reports import PrefixReport
from tests.scheduler.engine.prefix.cached_prompts import (
    PLENTY,
    RUN_BYTES,
    TOKEN_BYTES,
    State,
    at,
    cache_of,
    keep,
    serve,
    words,
)
from tests.scheduler.engine.prefix.integrity import check_integrity


def python_lines(action: Callable[[], object]) -> int:
    """How many lines of Python a call runs. Counted, not timed."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(previous)
    return lines


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
    check_integrity(cache)
    assert cache.evict(PLENTY) == (40 + 5) * TOKEN_BYTES
    cache.release(lease)


def test_a_split_under_leases_is_paid_for_until_the_last_is_released() -> None:
    """Both halves own their bytes, and two leases may still hold the whole."""
    cache = cache_of()
    keep(cache, words(0, 4))
    leases = [cache.pin(cache.match(at(words(0, 4)))) for _ in range(2)]
    keep(cache, words(0, 2) + words(9, 1))
    for left in (4 * RUN_BYTES, 4 * RUN_BYTES, 0):
        assert cache.nbytes == 5 * TOKEN_BYTES + left
        check_integrity(cache)
        if leases:
            cache.release(leases.pop())


def test_of_what_does_not_fit_the_beginning_is_kept() -> None:
    cache = cache_of(50)
    keep(cache, words(0, 100))
    assert cache.find(at(words(0, 100))).length == 50


def test_room_is_made_for_what_a_step_takes() -> None:
    """The budget stays: what is freed once may be filled again."""
    cache = cache_of()
    for start in (0, 1000, 2000):
        keep(cache, words(start, 100))
    lease = cache.match_and_lease(at(words(0, 100)))
    assert cache.evict(1) == 100 * TOKEN_BYTES
    assert cache.evict(PLENTY) == 100 * TOKEN_BYTES, "what is in use stays"
    assert cache.find(at(words(0, 101))).length == 100
    cache.release(lease)
    keep(cache, words(1000, 100))
    assert cache.nbytes == 200 * TOKEN_BYTES


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
        lines[tokens] = python_lines(partial(cache.match_and_lease, at(prompt)))
    assert lines[100_000] <= lines[1_000] + 7 * 5, "twice the tokens are one more bisection at most"


def test_what_left_the_queue_does_not_pile_up_in_it() -> None:
    cache = cache_of()
    keep(cache, words(0, 10))
    for _ in range(1000):
        cache.release(cache.match_and_lease(at(words(0, 10))))
    assert len(cache._queue) <= 64 + 4


def test_a_lease_that_ends_inside_an_edge_has_no_snapshot() -> None:
    """The state at the end of the edge is one of other tokens."""
    cache = cache_of(needs_snapshot=True)
    keep(cache, words(0, 3))
    cache.attach(at(words(0, 3)), State(()))
    assert cache.pin(cache.match(at(words(0, 2)))).snapshot is None
    assert cache.pin(cache.match(at(words(0, 3)))).snapshot is not None


def test_the_least_recently_used_go_when_there_are_too_many_buffers() -> None:
    """Metal has a number of allocations, whatever their size. Bytes would be left for a million tokens; the
    third of three nodes takes the first one's place."""
    cache = cache_of(buffers=BufferBound(8, of_segment=4, of_snapshot=0))
    for start in (0, 1000, 2000):
        keep(cache, words(start, 10))
    assert [cache.find(at(words(start, 10))).length for start in (0, 1000, 2000)] == [0, 9, 9]
    assert cache.statistics().evicted_tokens["budget"] == 10
