"""The order of eviction from the prefix cache, and what protects an entry."""

from __future__ import annotations

import pytest

from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import Retention
from scheduler.shared.reports import PrefixReport
from tests.scheduler.engine.prefix.cached_prompts import (
    RUN_BYTES,
    TOKEN_BYTES,
    Run,
    State,
    at,
    cache_of,
    keep,
    serve,
    words,
)


def test_one_shot_tails_go_before_multi_referenced_prefixes() -> None:
    """A prefix that three agents share outlives a newer prompt of one request, also as a bare leaf."""
    cache = cache_of(400)
    for agent in range(3):
        serve(cache, words(0, 100) + words(1000 + 50 * agent, 50))
    serve(cache, words(5000, 100))
    assert cache.find(at(words(0, 101))).length == 100
    cache.set_running_bytes(300 * TOKEN_BYTES)
    assert cache.find(at(words(0, 101))).length == 100
    assert cache.statistics().tokens == 100
    assert cache.statistics().evicted_tokens == {"budget": 250, "superseded": 0, "cleared": 0}


def test_a_fork_is_a_shared_prefix_before_anyone_has_hit_it() -> None:
    """Two prompts that were stored side by side are reason enough."""
    cache = cache_of(300)
    for tail in (1000, 2000):
        keep(cache, words(0, 100) + words(tail, 50))
    keep(cache, words(5000, 100))
    cache.set_running_bytes(200 * TOKEN_BYTES)
    assert (cache.find(at(words(0, 101))).length, cache.find(at(words(5000, 100))).length) == (100, 0)


def test_what_was_hit_twice_outlives_what_was_hit_once() -> None:
    """As in SGLang's slru; the once-hit one is the newer here, and goes."""
    cache = cache_of(250)
    keep(cache, words(0, 100))
    for _ in range(2):
        cache.release(cache.match_and_lease(at(words(0, 100))))
    keep(cache, words(1000, 100))
    cache.release(cache.match_and_lease(at(words(1000, 100))))
    keep(cache, words(2000, 100))
    assert (cache.find(at(words(0, 100))).length, cache.find(at(words(1000, 100))).length) == (99, 0)


def test_a_continuation_protects_at_once() -> None:
    """The good hit of exo #1817: the whole system prompt, 1000 tokens and half of the prompt."""
    cache = cache_of(5000)
    serve(cache, words(0, 2000))
    serve(cache, words(0, 2100))
    serve(cache, words(10_000, 2000))
    serve(cache, words(20_000, 2000))
    assert cache.find(at(words(0, 2001))).length == 2000
    assert cache.find(at(words(10_000, 2000))).length == 0


def test_a_passer_by_protects_only_what_it_passes() -> None:
    """Prompts that leave an edge in its middle say nothing of the rest, and count as no use of it."""
    cache = cache_of(250)
    keep(cache, words(0, 100))
    for branch in range(5):
        cache.release(cache.match_and_lease(at(words(0, 40) + words(10_000 + 100 * branch, 20))))
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.find(at(words(0, 100))).length, cache.find(at(words(1000, 100))).length) == (40, 99)
    assert cache.statistics().shared_prefixes == [PrefixReport(tokens=40, references=1, hits=5, head=[])]


def test_both_halves_of_an_edge_have_its_past() -> None:
    """Whatever cuts it, and wherever: hits, protection and supersession stay true of all of it."""
    cache = cache_of(250)
    for _ in range(3):
        serve(cache, words(0, 100))
    cache.release(cache.match_and_lease(at(words(0, 40) + words(10_000, 9))))
    assert [prefix.hits for prefix in cache.statistics().shared_prefixes] == [3, 2]
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.find(at(words(0, 100))).length, cache.find(at(words(1000, 100))).length) == (99, 0)

    cache = cache_of(8000, needs_snapshot=True)
    keep(cache, words(0, 3000) + words(10_000, 300), "s")
    keep(cache, words(0, 3000) + words(20_000, 500), "s")
    cache.attach(at((words(0, 3000) + words(10_000, 300))[:3100]), State((), nbytes=0))
    cache.set_running_bytes(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 300


def test_protection_ends_when_nobody_comes_back() -> None:
    """Yesterday's agents do not keep out today's: what has not been asked for during many of its gaps
    is not expected any more."""
    cache = cache_of(250)
    for _ in range(3):
        serve(cache, words(0, 100))
    for _ in range(1000):
        cache.match_and_lease(at(words(90_000, 1)))  # Time passes.
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.find(at(words(0, 100))).length, cache.find(at(words(1000, 100))).length) == (0, 99)


@pytest.mark.parametrize(
    ("hit", "prompt", "system", "continues"),
    [
        (1000, 2000, 1000, True),
        (999, 1500, 0, False),
        (1000, 2001, 0, False),
        (1000, 1500, 1001, False),
    ],
)
def test_the_good_hit_rule(hit: int, prompt: int, system: int, continues: bool) -> None:
    """Its constants are exo's, and so is where they turn."""
    assert Retention().continues(hit, prompt, system) == continues


def test_superseded_turns_go_first() -> None:
    """The newer turn renders the old answer differently: the old tail is over, and leaves before anything
    else, although it was protected and an older one-shot prompt was not."""
    cache = cache_of(7000)
    serve(cache, words(50_000, 1000))
    first = words(0, 3000) + words(10_000, 300)
    serve(cache, first, session="s")
    serve(cache, first, session="s")
    assert serve(cache, words(0, 3000) + words(20_000, 500), session="s") == 3000
    serve(cache, words(60_000, 2400))
    assert cache.statistics().evicted_tokens == {"budget": 0, "superseded": 300, "cleared": 0}
    assert cache.find(at(words(50_000, 1000))).length == 999


def test_a_superseded_tail_that_is_used_again_is_one_no_more() -> None:
    """A hint, not a sentence: who goes back to the older turn finds it, and it is kept like any other."""
    cache = cache_of(8000)
    first = words(0, 3000) + words(10_000, 300)
    serve(cache, first, session="s")
    serve(cache, words(0, 3000) + words(20_000, 500), session="s")
    cache.release(cache.match_and_lease(at(first)))
    serve(cache, words(50_000, 3500))
    serve(cache, words(60_000, 3500))
    assert cache.statistics().evicted_tokens["superseded"] == 0


@pytest.mark.parametrize("other", ["turn", "tail", "lease"])
def test_what_others_use_is_not_superseded(other: str) -> None:
    """Another session's newest turn, a tail that grew on it, or a request that runs on it."""
    cache = cache_of(8000)
    first = words(0, 3000) + words(10_000, 300)
    serve(cache, first, session="s")
    match other:
        case "turn":
            serve(cache, first, session="t")
        case "tail":
            serve(cache, first + words(30_000, 100))
        case _:
            cache.match_and_lease(at(first))
    serve(cache, words(0, 3000) + words(20_000, 500), session="s")
    cache.set_running_bytes(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_turns_that_share_only_the_system_prompt_are_branches() -> None:
    """Sub-agents of one session: the longer one does not end the shorter."""
    cache = cache_of(8000)
    serve(cache, words(0, 2000) + words(10_000, 300), session="s", system=2000)
    serve(cache, words(0, 2000) + words(20_000, 500), session="s", system=2000)
    cache.set_running_bytes(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_a_turn_that_goes_far_beyond_the_last_one_is_no_branch_of_it() -> None:
    """A long result of a tool: the older turn on its path makes way, and no branch is forgotten for it."""
    cache = cache_of(retention=Retention(branches_per_session=2))
    branch, turn = words(50_000, 400), words(0, 300)
    for tokens in (branch, turn, turn + words(10_000, 20_000)):
        serve(cache, tokens, session="s")
    assert [node.end for node in cache._turns.ends["", "s"]] == [400, 20_300]


def test_what_several_sessions_use_is_judged_by_its_own_hits() -> None:
    """Not by when the first of them comes back."""
    cache = cache_of(250)
    for start, names in ((0, "abcd"), (1000, "e"), (2000, "f")):
        for name in names:
            lease = cache.match_and_lease(at(words(start, 100)), 0, name)
            keep(cache, words(start, 100), name)
            cache.release(lease)
            cache.ended("", name, "")
    assert [cache.find(at(words(start, 100))).length for start in (0, 1000, 2000)] == [99, 0, 99]


def test_a_session_that_is_over_goes_before_one_that_has_long_gaps() -> None:
    """One came back every five seconds and has not for forty; the other one always takes a minute, and was
    used longer ago. Recency would keep the wrong one."""

    def turn(session: str, start: int) -> None:
        lease = cache.match_and_lease(at(words(start, 100)), 0, session)
        keep(cache, words(start, 100), session)
        cache.ended("", session, "tool")
        cache.release(lease)

    now = 0.0
    cache = PrefixCache[Run, State](250 * TOKEN_BYTES, RUN_BYTES, False, lambda: now)
    for second in range(0, 601, 5):
        now = float(second)
        if second % 60 == 0:
            turn("slow", 0)
        turn("fast", 1000)
    now += 40.0
    keep(cache, words(2000, 100), "new")
    assert (cache.find(at(words(0, 100))).length, cache.find(at(words(1000, 100))).length) == (99, 0)
