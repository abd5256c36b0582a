"""The prefix cache's policy: a state machine against a set of prefixes, and a sentence for each rule."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.prefix.cache_statistics import Trunk
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.radix_tree import KEY_BYTES, Lease
from scheduler.engine.prefix.retention import Retention
from tests.scheduler.engine.prefix.test_radix_tree import (
    RUN_BYTES,
    STATE_BYTES,
    Run,
    State,
    content_of,
    cut_of,
    longest,
    prompts,
    python_lines,
    salts,
)

TOKEN_BYTES = RUN_BYTES + KEY_BYTES
PLENTY = 10**9
SMALL = Retention(
    continuation_tokens=3, protected_seconds=8, snapshots_per_path=3, branches_per_session=2, sessions=3
)

Place: TypeAlias = tuple[str, tuple[int, ...]]


def prefixes(tokens: Sequence[int], salt: str) -> set[Place]:
    return {(salt, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}


class CacheMachine(RuleBasedStateMachine):
    """Any order of everything. What is held is a set of prefixes; each prefix pays for its last token."""

    @initialize(
        budget=st.one_of(st.just(PLENTY), st.integers(0, 40 * TOKEN_BYTES)),
        needs_snapshot=st.booleans(),
        grain=st.sampled_from([1, 1, 4]),
    )
    def begin(self, budget: int, needs_snapshot: bool, grain: int) -> None:
        self.budget, self.running, self.needs_snapshot, self.grain = budget, 0, needs_snapshot, grain
        ticks = count()
        self.cache: PrefixCache[Run, State] = PrefixCache(
            budget, RUN_BYTES, needs_snapshot, lambda: float(next(ticks)), SMALL
        )
        self.held: set[Place] = set()
        self.states: dict[Place, State] = {}
        self.leases: list[tuple[Lease[Run, State], list[int], str, State | None]] = []
        self.asked = self.hit = 0

    @rule(
        tokens=prompts,
        salt=salts,
        session=st.sampled_from([None, "a", "b", "c", "d"]),
        system=st.integers(0, 3),
    )
    def store(self, tokens: list[int], salt: str, session: str | None, system: int) -> None:
        missing = len(tokens) - longest(self.held, salt, tokens, len(tokens))
        fits = self.cache.nbytes + missing * TOKEN_BYTES <= self.room
        before, totals = self.held, self.totals()
        added = self.cache.store(tokens, salt, cut_of(tokens, self.grain), session, system)
        self.observe()
        new = self.held - before
        assert new <= prefixes(tokens, salt), "only what was stored is new"
        stored, evicted = (now - then for now, then in zip(self.totals(), totals, strict=True))
        assert stored - evicted == len(self.held) - len(before)
        if self.grain > 1:
            return
        assert added == TOKEN_BYTES * len(new)
        if fits:
            assert before <= self.held, "nothing goes while there is room"
            assert prefixes(tokens, salt) <= self.held or self.replaced_bytes()
        elif self.room:
            whole = prefixes(tokens, salt) <= self.held
            assert whole or self.room - self.cache.nbytes < TOKEN_BYTES, "what fits is stored"

    @rule(tokens=prompts, salt=salts)
    def store_what_cannot_be_cut(self, tokens: list[int], salt: str) -> None:
        def cut(start: int, end: int) -> Run:
            raise MemoryError

        before = self.held
        try:
            self.cache.store(tokens, salt, cut)
        except MemoryError:
            assert (salt, tuple(tokens)) not in before
        self.observe()
        assert self.held <= before

    @rule(tokens=st.lists(st.integers(0, 2), max_size=10), salt=salts, system=st.integers(0, 3))
    def lookup(self, tokens: list[int], salt: str, system: int) -> None:
        usable = set(self.states) if self.needs_snapshot else self.held
        expected = longest(usable, salt, tokens, len(tokens) - 1)
        assert self.cache.peek(tokens, salt) == expected
        before = self.held
        lease = self.cache.lookup(tokens, salt, system)
        assert lease.length == expected
        assert all(taken > 0 for _, taken in lease.pieces)
        state = self.states[salt, tuple(tokens[:expected])] if self.needs_snapshot and expected else None
        assert not self.needs_snapshot or lease.snapshot is state
        self.leases.append((lease, tokens, salt, state))
        self.asked += len(tokens)
        self.hit += expected
        self.observe()
        assert self.held <= before

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease, *_ = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        before = self.held
        self.cache.release(lease)
        self.observe()
        assert self.held <= before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), size=st.sampled_from([STATE_BYTES, 3 * STATE_BYTES]))
    def attach(self, data: st.DataObject, size: int) -> None:
        salt, prefix = data.draw(st.sampled_from(sorted(self.held)))
        known, before, states = (salt, prefix) in self.states, self.held, self.states
        state = State(prefix, size)
        kept = self.cache.attach(prefix, salt, state)
        self.observe()
        assert self.held <= before
        assert kept == (self.states.get((salt, prefix)) is state)
        assert set(self.states.items()) <= {*states.items(), ((salt, prefix), state)}
        if known or not self.needs_snapshot:
            assert (kept, self.states) == (False, states)

    @rule(tokens=prompts, salt=salts)
    def attach_to_what_is_not_held(self, tokens: list[int], salt: str) -> None:
        if (salt, tuple(tokens)) not in self.held:
            before = self.states
            assert not self.cache.attach(tokens, salt, State(tuple(tokens)))
            self.observe()
            assert self.states == before

    @rule(running=st.integers(0, 20 * TOKEN_BYTES))
    def reserve(self, running: int) -> None:
        self.running, before = running, self.held
        enough = self.cache.nbytes <= self.room
        self.cache.reserve(running)
        self.observe()
        assert self.held <= before
        assert not enough or self.held == before

    @rule()
    def clear(self) -> None:
        before = self.cache.nbytes
        assert self.cache.clear() == before - self.cache.nbytes
        self.observe()
        assert self.held == {place for place in self.held if place in self.leased_edges()}
        assert len(self.states) == len({id(state) for *_, state in self.leases if state is not None})

    @property
    def room(self) -> int:
        return max(0, self.budget - self.running)

    def totals(self) -> tuple[int, int]:
        statistics = self.cache.statistics()
        return statistics.stored_tokens, sum(statistics.evicted_tokens.values())

    def observe(self) -> None:
        """Read the tree's content, token by token, out of the segments themselves."""
        self.held, self.states = set(), {}
        for node in self.cache._tree.walk():
            above = [*self.cache._tree.parents(node)][::-1]
            whole = tuple(token for each in (*above, node) for token in each.segment.values)
            assert list(node.segment.values) == list(node.tokens)
            self.held |= {(node.salt, whole[:n]) for n in range(node.start + 1, node.end + 1)}
            if node.snapshot is not None:
                assert node.snapshot.prefix == whole
                self.states[node.salt, whole] = node.snapshot

    def leased_edges(self) -> set[Place]:
        """Prefixes that are held for leases: their paths, the last edge whole."""
        edges: set[Place] = set()
        for lease, tokens, salt, _ in self.leases:
            edges |= prefixes(tokens[: lease.length], salt)
            if lease.node is not None:
                rest = (*tokens[: lease.node.start], *lease.node.segment.values)
                edges |= prefixes(rest, salt)
        return edges

    def replaced_bytes(self) -> int:
        inside = {id(node.segment) for node in self.cache._tree.walk()}
        held = {id(run): run for lease, *_ in self.leases for run, _ in lease.pieces}
        return sum(run.nbytes for key, run in held.items() if key not in inside)

    @invariant()
    def every_byte_is_accounted(self) -> None:
        if not hasattr(self, "cache"):
            return
        sizes = sum(state.nbytes for state in self.states.values()) + self.replaced_bytes()
        if self.grain == 1:
            assert self.cache.nbytes == TOKEN_BYTES * len(self.held) + sizes
        else:
            runs = sum(node.segment.nbytes for node in self.cache._tree.walk())
            assert self.cache.nbytes == runs + KEY_BYTES * len(self.held) + sizes
        assert self.cache.check_integrity() == []
        statistics = self.cache.statistics()
        assert (statistics.query_tokens, statistics.hit_tokens) == (self.asked, self.hit)
        assert (statistics.held.tokens, statistics.leases) == (len(self.held), len(self.leases))
        assert len(self.cache._sessions) <= SMALL.sessions
        assert all(0 < len(ends) <= SMALL.branches_per_session for ends in self.cache._sessions.values())

    @invariant()
    def the_budget_holds_but_for_leases(self) -> None:
        if hasattr(self, "cache") and self.cache.nbytes > self.room:
            assert self.held == self.leased_edges(), "over the budget, and something could have gone"
            leased = {id(state) for *_, state in self.leases if state is not None}
            assert {id(state) for state in self.states.values()} <= leased

    @invariant()
    def leases_lose_nothing(self) -> None:
        for lease, tokens, salt, state in getattr(self, "leases", ()):
            assert content_of(lease) == tokens[: lease.length]
            assert prefixes(tokens[: lease.length], salt) <= self.held
            assert state is None or self.states[salt, tuple(tokens[: lease.length])] is state

    @invariant()
    def no_path_has_too_many_snapshots(self) -> None:
        for salt, prefix in getattr(self, "states", ()):
            path = prefixes(prefix, salt) & self.states.keys()
            assert len(path) <= SMALL.snapshots_per_path


TestPrefixCache = CacheMachine.TestCase
TestPrefixCache.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)


# Each rule in a sentence. Prompts are runs of numbers: `words(0, 4000)` is a trunk, `words(9000, 20)` a tail.


def words(start: int, length: int) -> array[int]:
    return array("I", range(start, start + length))


def cache_of(
    tokens: int = PLENTY, needs_snapshot: bool = False, retention: Retention | None = None
) -> PrefixCache[Run, State]:
    """Room for so many tokens; a second passes with every look at the clock."""
    ticks = count(1)
    return PrefixCache(tokens * TOKEN_BYTES, RUN_BYTES, needs_snapshot, lambda: float(next(ticks)), retention)


def keep(
    cache: PrefixCache[Run, State], tokens: array[int], session: str | None = None, system: int = 0
) -> int:
    return cache.store(tokens, "", cut_of(tokens), session, system)


def serve(
    cache: PrefixCache[Run, State], tokens: array[int], session: str | None = None, system: int = 0
) -> int:
    """A whole request: look up, compute, store, release. The tokens that were found."""
    lease = cache.lookup(tokens, "", system)
    found = lease.length
    keep(cache, tokens, session, system)
    cache.release(lease)
    assert cache.check_integrity() == []
    return found


def test_an_exact_repeat_leaves_one_token_to_compute() -> None:
    """There must be a forward pass to sample from; a prompt of one token finds nothing."""
    cache = cache_of()
    keep(cache, words(0, 500))
    assert cache.lookup(words(0, 500), "").length == 499
    assert cache.lookup(words(0, 501), "").length == 500
    assert cache.lookup(words(0, 1), "").length == 0
    assert cache.lookup(words(0, 0), "").length == 0


def test_thirty_two_conversations_on_one_trunk_hold_one_trunk() -> None:
    """4096 tokens once, and each tail; operators see the trunk, its references and its hits."""
    cache = cache_of()
    trunk = words(0, 4096)
    for agent in range(32):
        assert serve(cache, trunk + words(10_000 + 200 * agent, 200)) == (4096 if agent else 0)
    held = cache.statistics().held
    assert held.tokens == 4096 + 32 * 200
    assert held.nodes == 33
    assert cache.nbytes == held.tokens * TOKEN_BYTES
    assert cache.statistics().top_trunks[0] == Trunk(tokens=4096, references=32, hits=31, head=())


def test_a_branch_never_destroys_a_longer_trunk() -> None:
    """exo lost 4000 of 6000 tokens to a title of the same session that shared 2000. Here both stay, and the
    longer one is not marked to go first."""
    cache = cache_of()
    long, title = words(0, 6000), words(0, 2000) + words(50_000, 15)
    serve(cache, long, session="s")
    assert serve(cache, title, session="s") == 2000
    assert cache.peek(long, "") == 5999
    assert cache.peek(title, "") == 2014
    cache.reserve((PLENTY - 5000) * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_a_shorter_branch_of_a_long_conversation_costs_nothing() -> None:
    """A prompt that is the beginning of what is held is not stored twice, and not even split."""
    cache = cache_of()
    keep(cache, words(0, 6000))
    assert keep(cache, words(0, 2000)) == 0
    assert (cache.statistics().held.nodes, cache.statistics().held.tokens) == (1, 6000)
    assert cache.peek(words(0, 6000), "") == 5999


def test_salts_isolate() -> None:
    """One tenant's prefix is another tenant's miss, also in what is counted and cleared by name."""
    cache = cache_of()
    cache.store(words(0, 100), "red", cut_of(words(0, 100)))
    assert (cache.peek(words(0, 100), "red"), cache.peek(words(0, 100), "blue")) == (99, 0)
    cache.store(words(0, 100), "blue", cut_of(words(0, 100)))
    assert cache.statistics().held.tokens == 200


def test_a_hit_is_the_deepest_position_that_every_layer_can_restore() -> None:
    """Layers that cannot be cut come back only where a snapshot lies, at or before the match."""
    cache = cache_of(needs_snapshot=True)
    tokens = words(0, 3000)
    keep(cache, tokens)
    assert cache.lookup(tokens, "").length == 0
    for position in (1500, 2991, 3000):
        assert cache.attach(tokens[:position], "", State(tuple(tokens[:position])))
    for prompt, found in ((tokens, 2991), (tokens[:2995] + words(90_000, 9), 2991), (tokens[:2990], 1500)):
        lease = cache.lookup(prompt, "")
        assert lease.length == found
        assert lease.snapshot is not None
        assert lease.snapshot.prefix == tuple(content_of(lease)) == tuple(prompt[:found])
    assert cache.lookup(tokens[:1500], "").length == 0, (
        "the snapshot after the last token leaves none to compute"
    )


def test_a_snapshot_is_kept_once_and_only_where_it_helps() -> None:
    """Not twice at one position, not where its tokens are not held, not for a model that can be cut."""
    cache = cache_of(needs_snapshot=True)
    keep(cache, words(0, 10))
    assert cache.attach(words(0, 5), "", State(()))
    assert not cache.attach(words(0, 5), "", State(()))
    assert not cache.attach(words(0, 11), "", State(()))
    assert not cache.attach(words(0, 0), "", State(()))
    assert cache.statistics().held.snapshots == 1
    plain = cache_of()
    keep(plain, words(0, 10))
    assert not plain.attach(words(0, 5), "", State(()))


def test_snapshots_of_a_path_are_bounded_and_spread() -> None:
    """Of a long conversation stay the place that others came back to and the newest; what goes is where they
    lie dense."""
    cache = cache_of(needs_snapshot=True, retention=Retention(snapshots_per_path=4))
    tokens = words(0, 5000)
    keep(cache, tokens)
    cache.attach(tokens[:1500], "", State(()))
    cache.attach(tokens[:1600], "", State(()))
    for _ in range(2):
        cache.release(cache.lookup(tokens[:1650], ""))
    for position in range(1700, 5000, 300):
        assert cache.attach(tokens[:position], "", State(())), "the deepest is what the next turn needs"
    kept = [node.end for node in cache._tree.walk() if node.snapshot is not None]
    assert len(kept) == 4
    assert {1600, 4700} < set(kept)
    assert not {1500, 1700} & set(kept)
    assert not cache.attach(tokens[:1590], "", State(())), "one more between two is worth the least"


def test_a_snapshot_at_a_fork_outlives_its_neighbours() -> None:
    """However dense they lie: two conversations part there, and a third would."""
    cache = cache_of(needs_snapshot=True, retention=Retention(snapshots_per_path=3))
    for tail in (1000, 2000):
        keep(cache, words(0, 100) + words(tail, 200))
    tokens = words(0, 100) + words(1000, 200)
    for position in (90, 100, 110, 300):
        assert cache.attach(tokens[:position], "", State(()))
    assert {node.end for node in cache._tree.walk() if node.snapshot is not None} == {100, 110, 300}


def test_snapshots_in_use_are_not_thinned() -> None:
    """A full path of leased snapshots takes no more."""
    cache = cache_of(needs_snapshot=True, retention=Retention(snapshots_per_path=2))
    keep(cache, words(0, 100))
    for position in (10, 20):
        assert cache.attach(words(0, position), "", State(()))
        cache.lookup(words(0, position + 1), "")
    assert not cache.attach(words(0, 30), "", State(()))
    assert cache.statistics().held.snapshots == 2


def test_a_snapshot_that_does_not_fit_is_not_kept() -> None:
    """And the tokens that it belongs to are not evicted for it."""
    cache = cache_of(10, needs_snapshot=True)
    keep(cache, words(0, 10))
    assert not cache.attach(words(0, 10), "", State((), nbytes=1))
    assert cache.statistics().held.tokens == 10


def test_one_shot_tails_go_before_multi_referenced_trunks() -> None:
    """A trunk that three agents stood on outlives a newer prompt that came once, also as a bare leaf."""
    cache = cache_of(400)
    for agent in range(3):
        serve(cache, words(0, 100) + words(1000 + 50 * agent, 50))
    serve(cache, words(5000, 100))
    assert cache.peek(words(0, 101), "") == 100
    cache.reserve(300 * TOKEN_BYTES)
    assert cache.peek(words(0, 101), "") == 100
    assert cache.statistics().held.tokens == 100
    assert cache.statistics().evicted_tokens == {"budget": 250, "superseded": 0, "cleared": 0}


def test_a_fork_is_a_trunk_before_anyone_has_hit_it() -> None:
    """Two prompts that were stored side by side are reason enough."""
    cache = cache_of(300)
    for tail in (1000, 2000):
        keep(cache, words(0, 100) + words(tail, 50))
    keep(cache, words(5000, 100))
    cache.reserve(200 * TOKEN_BYTES)
    assert (cache.peek(words(0, 101), ""), cache.peek(words(5000, 100), "")) == (100, 0)


def test_what_was_hit_twice_outlives_what_was_hit_once() -> None:
    """As in SGLang's slru; the once-hit one is the newer here, and goes."""
    cache = cache_of(250)
    keep(cache, words(0, 100))
    for _ in range(2):
        cache.release(cache.lookup(words(0, 100), ""))
    keep(cache, words(1000, 100))
    cache.release(cache.lookup(words(1000, 100), ""))
    keep(cache, words(2000, 100))
    assert (cache.peek(words(0, 100), ""), cache.peek(words(1000, 100), "")) == (99, 0)


def test_a_continuation_protects_at_once() -> None:
    """The good hit of exo #1817: the whole system prompt, 1000 tokens and half of the prompt."""
    cache = cache_of(5000)
    serve(cache, words(0, 2000))
    serve(cache, words(0, 2100))
    serve(cache, words(10_000, 2000))
    serve(cache, words(20_000, 2000))
    assert cache.peek(words(0, 2001), "") == 2000
    assert cache.peek(words(10_000, 2000), "") == 0


def test_a_passer_by_protects_only_what_it_passes() -> None:
    """Prompts that leave an edge in its middle say nothing of the rest, and count as no use of it."""
    cache = cache_of(250)
    keep(cache, words(0, 100))
    for branch in range(5):
        cache.release(cache.lookup(words(0, 40) + words(10_000 + 100 * branch, 20), ""))
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.peek(words(0, 100), ""), cache.peek(words(1000, 100), "")) == (40, 99)
    assert cache.statistics().top_trunks == (Trunk(tokens=40, references=1, hits=5, head=()),)


def test_both_halves_of_an_edge_have_its_past() -> None:
    """Whoever cuts it, and wherever: hits, protection and supersession stay true of all of it."""
    cache = cache_of(250)
    for _ in range(3):
        serve(cache, words(0, 100))
    cache.release(cache.lookup(words(0, 40) + words(10_000, 9), ""))
    assert [trunk.hits for trunk in cache.statistics().top_trunks] == [3, 2]
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.peek(words(0, 100), ""), cache.peek(words(1000, 100), "")) == (99, 0)

    cache = cache_of(8000, needs_snapshot=True)
    keep(cache, words(0, 3000) + words(10_000, 300), "s")
    keep(cache, words(0, 3000) + words(20_000, 500), "s")
    cache.attach((words(0, 3000) + words(10_000, 300))[:3100], "", State((), nbytes=0))
    cache.reserve(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 300


def test_what_a_lease_no_longer_needs_after_a_cut_can_go() -> None:
    """A lease inside an edge keeps the edge; when the edge is cut behind it, the rest is free again."""
    cache = cache_of()
    keep(cache, words(0, 100))
    lease = cache.lookup(words(0, 60), "")
    assert cache.clear() == 0
    cache.release(cache.lookup(words(0, 80) + words(10_000, 9), ""))
    assert cache.check_integrity() == []
    cache.clear()
    assert cache.statistics().held.tokens == 80
    assert content_of(lease) == list(range(59))


def test_protection_ends_when_nobody_comes_back() -> None:
    """Yesterday's agents do not keep out today's: after `protected_seconds` recency alone decides."""
    cache = cache_of(250, retention=Retention(protected_seconds=10))
    for _ in range(3):
        serve(cache, words(0, 100))
    for _ in range(20):
        cache.lookup(words(90_000, 1), "")  # Time passes.
    keep(cache, words(1000, 100))
    keep(cache, words(2000, 100))
    assert (cache.peek(words(0, 100), ""), cache.peek(words(1000, 100), "")) == (0, 99)


@pytest.mark.parametrize(
    ("hit", "prompt", "system", "continues"),
    [
        (1000, 2000, 1000, True),
        (999, 1500, 0, False),
        (1000, 2001, 0, False),
        (1000, 1500, 1001, False),
        (1001, 1500, 1001, True),
        (0, 0, 0, False),
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
    assert cache.peek(words(50_000, 1000), "") == 999


def test_a_turn_makes_room_for_its_successor() -> None:
    """What it supersedes is what goes for it, while its lease is still held."""
    cache = cache_of(4500)
    keep(cache, words(50_000, 1000))
    keep(cache, words(0, 3000) + words(10_000, 400), "s")
    serve(cache, words(0, 3000) + words(20_000, 450), "s")
    assert cache.statistics().evicted_tokens == {"budget": 0, "superseded": 400, "cleared": 0}


def test_a_superseded_tail_that_is_used_again_is_one_no_more() -> None:
    """A hint, not a sentence: who goes back to the older turn finds it, and it is kept like any other."""
    cache = cache_of(8000)
    first = words(0, 3000) + words(10_000, 300)
    serve(cache, first, session="s")
    serve(cache, words(0, 3000) + words(20_000, 500), session="s")
    cache.release(cache.lookup(first, ""))
    serve(cache, words(50_000, 3500))
    serve(cache, words(60_000, 3500))
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_a_superseded_tail_that_is_stored_again_is_one_no_more() -> None:
    """Whoever comes with the same tokens: they are in use again."""
    cache = cache_of(8000)
    first = words(0, 3000) + words(10_000, 300)
    serve(cache, first, session="s")
    serve(cache, words(0, 3000) + words(20_000, 500), session="s")
    assert keep(cache, first) == 0
    cache.reserve(8000 * TOKEN_BYTES)
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
            cache.lookup(first, "")
    serve(cache, words(0, 3000) + words(20_000, 500), session="s")
    cache.reserve(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_turns_that_share_only_the_system_prompt_are_branches() -> None:
    """Sub-agents of one session: the longer one does not end the shorter."""
    cache = cache_of(8000)
    serve(cache, words(0, 2000) + words(10_000, 300), session="s", system=2000)
    serve(cache, words(0, 2000) + words(20_000, 500), session="s", system=2000)
    cache.reserve(8000 * TOKEN_BYTES)
    assert cache.statistics().evicted_tokens["superseded"] == 0


def test_a_turn_that_extends_the_last_takes_its_place() -> None:
    """However short: a session knows one end of each of its branches, and a bounded number of them."""
    cache = cache_of(retention=Retention(branches_per_session=2))
    for length in (10, 20, 30):
        keep(cache, words(0, length), "s")
    assert [[node.end for node in ends] for ends in cache._sessions.values()] == [[30]]
    for branch in (1000, 2000):
        keep(cache, words(branch, 40), "s")
    assert [[node.start for node in ends] for ends in cache._sessions.values()] == [[0, 0]]
    assert [node.tokens[0] for node in cache._sessions["", "s"]] == [1000, 2000]


def test_sessions_are_forgotten_in_the_end() -> None:
    """Their number is bounded, the longest silent goes; an evicted turn takes its session with it."""
    cache = cache_of(retention=Retention(sessions=2))
    keep(cache, words(1000, 100), "a")
    for name in ("a", "b", "a", "c"):
        keep(cache, words(0, 100), name)
    assert [session for _, session in cache._sessions] == ["a", "c"]
    cache.clear()
    assert not cache._sessions
    assert cache.check_integrity() == []


def test_tokens_that_no_hit_can_restore_go_first() -> None:
    """In a model that needs snapshots, what lies beyond the last one is dead weight."""
    cache = cache_of(400, needs_snapshot=True)
    keep(cache, words(0, 100))
    cache.attach(words(0, 100), "", State((), nbytes=0))
    keep(cache, words(1000, 200))
    keep(cache, words(2000, 200))
    assert cache.peek(words(0, 101), "") == 100
    assert cache.statistics().held.tokens == 300


def test_old_snapshots_in_the_middle_go_before_the_newest_turn() -> None:
    """A conversation is not eaten from its useful end: a middle snapshot that nobody used is cheaper."""
    cache = cache_of(200, needs_snapshot=True)
    keep(cache, words(0, 100))
    for position in (50, 100):
        assert cache.attach(words(0, position), "", State((), nbytes=40 * TOKEN_BYTES))
    cache.release(cache.lookup(words(0, 101), ""))
    keep(cache, words(1000, 50))
    assert cache.peek(words(0, 101), "") == 100
    assert cache.peek(words(0, 60), "") == 0


def test_snapshots_in_the_middle_age_like_everything_else() -> None:
    """With their turn, or from when they were last restored; they go before a leaf of the same age, and
    after an older one."""
    cache = cache_of(1000, needs_snapshot=True)
    for start in (0, 1000, 2000):
        keep(cache, words(start, 100))
        for position in (50, 100) if start else (100,):
            size = 50 * TOKEN_BYTES
            assert cache.attach(words(start, position), "", State((), nbytes=size))
    for length in (101, 60):  # Of the two conversations the older one, restored at its end and in its middle.
        cache.release(cache.lookup(words(1000, length), ""))
    cache.reserve(500 * TOKEN_BYTES)
    assert [cache.peek(words(start, 101), "") for start in (0, 1000, 2000)] == [0, 100, 100]
    assert [cache.peek(words(start, 60), "") for start in (1000, 2000)] == [50, 50]
    cache.reserve(650 * TOKEN_BYTES)
    assert [cache.peek(words(start, 60), "") for start in (1000, 2000)] == [50, 0]
    assert [cache.peek(words(start, 101), "") for start in (1000, 2000)] == [100, 100]


def test_a_snapshot_that_is_only_passed_grows_old() -> None:
    """A hit at the end of a conversation says nothing for the snapshots before it."""
    cache = cache_of(1000, needs_snapshot=True)
    for start in (0, 1000):
        keep(cache, words(start, 100))
        for position in (50, 100):
            assert cache.attach(words(start, position), "", State((), nbytes=50 * TOKEN_BYTES))
    cache.release(cache.lookup(words(0, 101), ""))
    cache.reserve(650 * TOKEN_BYTES)
    assert [cache.peek(words(start, 60), "") for start in (0, 1000)] == [0, 50]


def test_what_fits_is_stored_shallow_first() -> None:
    """A prompt larger than the room keeps its beginning, so that a retry resumes there."""
    cache = cache_of(100)
    asked = []

    def cut(start: int, end: int) -> Run:
        asked.append((start, end))
        return Run(tuple(words(start, end - start)))

    assert cache.store(words(0, 1000), "", cut) == 100 * TOKEN_BYTES
    assert cache.store(words(0, 1000), "", cut) == 0
    assert asked == [(0, 100)]
    assert cache.peek(words(0, 1000), "") == 100


def test_segments_larger_than_announced_do_not_burst_the_budget() -> None:
    """Sizes are measured after the cut, and the excess goes at once; nothing added is reported then."""
    cache = cache_of(10)
    tokens = words(0, 10)
    assert cache.store(tokens, "", cut_of(tokens, grain=64)) == 0
    assert cache.nbytes == 0
    assert cache.check_integrity() == []


def test_halves_that_are_larger_than_the_whole_do_not_burst_the_budget() -> None:
    """Buffers are rounded up; a cut that costs more makes room at once, also when a lookup makes it."""
    cache = cache_of(8)
    tokens = words(0, 8)
    cache.store(tokens, "", cut_of(tokens, grain=4))
    lease = cache.lookup(words(0, 3) + words(100, 9), "")
    assert (lease.length, cache.nbytes) == (3, 4 * RUN_BYTES + 3 * KEY_BYTES)
    assert cache.check_integrity() == []


def test_running_requests_come_first() -> None:
    """Their bytes are taken from the cache's room at once, but never from under a lease; when that is
    released, what was over goes."""
    cache = cache_of(300)
    keep(cache, words(0, 100))
    lease = cache.lookup(words(0, 100), "")
    keep(cache, words(1000, 100))
    cache.reserve(280 * TOKEN_BYTES)
    assert (cache.room, cache.nbytes) == (20 * TOKEN_BYTES, 100 * TOKEN_BYTES)
    assert content_of(lease) == list(range(99))
    assert keep(cache, words(2000, 5)) == 0
    cache.release(lease)
    assert cache.nbytes == 0
    cache.reserve(0)
    assert keep(cache, words(2000, 5)) == 5 * TOKEN_BYTES


def test_no_budget_is_a_cache_turned_off() -> None:
    """Lookups miss, nothing is stored or cut, nothing complains."""
    cache = cache_of(0, needs_snapshot=True)
    assert serve(cache, words(0, 100), session="s") == 0
    assert not cache.attach(words(0, 100), "", State(()))
    cache.reserve(1000)
    assert (cache.room, cache.clear()) == (0, 0)
    statistics = cache.statistics()
    assert (statistics.query_tokens, statistics.hit_tokens, statistics.held.nodes) == (100, 0, 0)
    assert cache.check_integrity() == []


def test_clear_lets_go_of_everything_that_is_not_in_use() -> None:
    """And says how many bytes that was."""
    cache = cache_of()
    keep(cache, words(0, 100))
    keep(cache, words(1000, 100))
    lease = cache.lookup(words(0, 60), "")
    assert cache.clear() == 100 * TOKEN_BYTES
    assert cache.statistics().evicted_tokens["cleared"] == 100
    cache.release(lease)
    assert cache.clear() == 100 * TOKEN_BYTES
    assert (cache.nbytes, cache.evicted_bytes) == (0, 200 * TOKEN_BYTES)
    keep(cache, words(0, 2000) + words(10_000, 20), "s")
    keep(cache, words(0, 2000) + words(20_000, 30), "s")
    cache.clear()
    assert cache.statistics().evicted_tokens == {"budget": 0, "superseded": 0, "cleared": 200 + 2050}


def test_a_cut_that_fails_leaves_no_pin_behind() -> None:
    """What was there can be evicted afterwards as before."""
    cache = cache_of()
    keep(cache, words(0, 100))

    def cut(start: int, end: int) -> Run:
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.store(words(0, 50) + words(1000, 50), "", cut, "s")
    assert cache.check_integrity() == []
    assert cache.peek(words(0, 100), "") == 99
    assert cache.clear() == 100 * TOKEN_BYTES


def test_statistics_tell_no_token() -> None:
    """Counts only: the page that shows them may be open to people who may not read prompts."""
    cache = cache_of()
    secret = 987_654_321
    for _ in range(3):
        serve(cache, words(secret, 20), session="s")
    assert str(secret)[:6] not in repr(cache.statistics())
    assert cache.statistics().top_trunks == (Trunk(tokens=20, references=1, hits=2, head=()),)


def test_a_long_lookup_is_a_bounded_number_of_python_operations() -> None:
    """Hundred thousand tokens among hundred other conversations cost what their few edges cost."""
    lines = {}
    for tokens in (1_000, 100_000):
        cache = cache_of()
        prompt = words(0, tokens)
        for branch in range(100):
            keep(cache, prompt[: tokens // 2] + words(10**6 + branch, 1))
        keep(cache, prompt)
        lines[tokens], lease = python_lines(cache.lookup, prompt, "")
        assert lease.length == tokens - 1
    assert lines[100_000] <= lines[1_000] + 7 * 5, "twice the tokens are one more bisection at most"
    assert lines[100_000] < 150


def test_an_eviction_is_amortised_logarithmic() -> None:
    """Ten times as many nodes do not cost ten times as much each, and invalid entries do not pile up."""
    cost = {}
    for nodes in (200, 2_000):
        cache = cache_of(nodes * 10)
        for index in range(nodes):
            keep(cache, words(100 * index, 10))
        for index in range(nodes):
            cache.release(cache.lookup(words(100 * index, 10), ""))
        total = 0
        for index in range(nodes, 2 * nodes):
            total += python_lines(keep, cache, words(100 * index, 10))[0]
        cost[nodes] = total / nodes
    assert cost[2_000] < 1.5 * cost[200]
    for _ in range(10_000):
        cache.release(cache.lookup(words(100 * 3_999, 10), ""))
    assert len(cache._queue) <= 64 + 4 * 2_000


def test_integrity_says_what_is_wrong() -> None:
    """An alarm that names the damage; the tree's own complaints are among them."""

    def stored() -> PrefixCache[Run, State]:
        cache = cache_of()
        keep(cache, words(0, 10), "s")
        return cache

    cache = stored()
    cache._tree.tokens = 3
    assert cache.check_integrity() == ["tokens says 3, the tree holds 10"]
    cache = stored()
    cache._queue.clear()
    assert cache.check_integrity() == ["node [0, 10) would never be evicted"]
    cache = stored()
    cache._sessions.clear()
    assert cache.check_integrity() == ["sessions and turns are not the same"]
    cache = stored()
    cache.budget_bytes = 1
    assert cache.check_integrity() == ["70 bytes in a room of 1, and not all in use"]
    cache = stored()
    cache._marks.clear()
    assert cache.check_integrity() == ["nodes and marks are not the same"]
