"""The prefix cache under any order of operations: a state machine against a set of prefixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import count
from typing import TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.prefix.nodes import Known, Lease
from scheduler.engine.prefix.prefix_cache import PrefixCache
from scheduler.engine.prefix.retention import BufferBound, Retention
from scheduler.shared.token_ids import KEY_BYTES, compact
from tests.examples import examples
from tests.scheduler.engine.prefix.cached_prompts import (
    PLENTY,
    RUN_BYTES,
    STATE_BYTES,
    TOKEN_BYTES,
    Run,
    State,
    at,
    cut_of,
)
from tests.scheduler.engine.prefix.integrity import check_integrity

SMALL = Retention(
    continuation_tokens=3, held_share=0.5, snapshots_per_path=3, branches_per_session=2, sessions=3
)

Place: TypeAlias = tuple[str, tuple[int, ...]]

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
salts = st.sampled_from(["", "tenant"])


def longest(held: Collection[Place], salt: str, tokens: Sequence[int], limit: int) -> int:
    """What a match must say, the slow way."""
    return max((n for n in range(1, limit + 1) if (salt, tuple(tokens[:n])) in held), default=0)


def content_of(lease: Lease[Run, State]) -> list[int]:
    """The tokens that a lease really carries."""
    return [token for run, taken in lease.pieces for token in run.values[:taken]]


def prefixes(tokens: Sequence[int], salt: str) -> set[Place]:
    return {(salt, tuple(tokens[:n])) for n in range(1, len(tokens) + 1)}


class CacheMachine(RuleBasedStateMachine):
    """Any order of everything. What is held is a set of prefixes; each prefix pays for its last token. Who
    asks again for the same tokens does so as a running row, which knows how far they were found."""

    @initialize(
        budget=st.one_of(st.just(PLENTY), st.integers(0, 40 * TOKEN_BYTES)),
        needs_snapshot=st.booleans(),
        grain=st.sampled_from([1, 1, 4]),
        buffers=st.none() | st.builds(BufferBound, st.integers(0, 20), st.just(4), st.integers(0, 9)),
    )
    def begin(
        self, budget: int, needs_snapshot: bool, grain: int, buffers: BufferBound | None = None
    ) -> None:
        self.budget, self.running, self.needs_snapshot, self.grain = budget, 0, needs_snapshot, grain
        self.buffers = buffers
        self.rows: dict[Place, Known[Run, State]] = {}
        ticks = count()
        self.cache: PrefixCache[Run, State] = PrefixCache(
            budget, RUN_BYTES, needs_snapshot, lambda: float(next(ticks)), SMALL, buffers
        )
        self.held: set[Place] = set()
        self.states: dict[Place, State] = {}
        self.leases: list[tuple[Lease[Run, State], list[int], str, State | None]] = []
        self.asked = self.hit = 0

    def known(self, tokens: Sequence[int], salt: str) -> Known[Run, State]:
        return self.rows.setdefault((salt, tuple(tokens)), at(tokens, salt))

    @rule(limit=st.integers(0, 8))
    def match_rows_again(self, limit: int) -> None:
        """And as far as they are computed: what a row knows changes nothing."""
        for (salt, tokens), row in self.rows.items():
            match = self.cache.match(row, limit)
            assert match == self.cache.match(at(tokens, salt), limit)
            assert match.length == longest(self.held, salt, tokens, min(limit, len(tokens)))
            part = match.until(match.length // 2)
            assert part == self.cache.match(at(tokens, salt), match.length // 2)

    @rule(
        tokens=prompts,
        salt=salts,
        session=st.sampled_from([None, "a", "b", "c", "d"]),
        system=st.integers(0, 3),
        computed=st.integers(1, 8),
    )
    def store(self, tokens: list[int], salt: str, session: str | None, system: int, computed: int) -> None:
        row, tokens = self.known(tokens, salt), tokens[:computed]
        missing = len(tokens) - longest(self.held, salt, tokens, len(tokens))
        fits = self.cache.nbytes + missing * TOKEN_BYTES <= self.room and self.buffers is None
        before, totals = self.held, self.totals()
        cut = cut_of(tokens, self.grain)
        added = self.cache.insert(row, cut, session, system, len(tokens))
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
        elif self.room and self.buffers is None:
            whole = prefixes(tokens, salt) <= self.held
            assert whole or self.room - self.cache.nbytes < TOKEN_BYTES, "what fits is stored"

    @rule(tokens=prompts, salt=salts)
    def store_what_cannot_be_cut(self, tokens: list[int], salt: str) -> None:
        def cut(start: int, end: int) -> Run:
            raise MemoryError

        before = self.held
        try:
            self.cache.insert(self.known(tokens, salt), cut)
        except MemoryError:
            assert (salt, tuple(tokens)) not in before
        self.observe()
        assert self.held <= before

    @rule(salt=salts, session=st.sampled_from(["a", "b", "c"]), kind=st.sampled_from(["", "tool"]))
    def end_turn(self, salt: str, session: str, kind: str) -> None:
        before = self.held
        self.cache.ended(salt, session, kind)
        self.observe()
        assert self.held == before

    @precondition(lambda self: self.held)
    @rule(data=st.data(), seconds=st.integers(1, 20))
    def hold(self, data: st.DataObject, seconds: int) -> None:
        salt, prefix = data.draw(st.sampled_from(sorted(self.held)))
        before, bytes_before = self.held, self.cache.statistics().held_bytes
        refusal = self.cache.hold(compact(prefix), salt, seconds)
        self.observe()
        assert self.held <= before
        # A split costs bytes where pieces are rounded up, or where a lease holds the whole.
        assert self.grain > 1 or self.leases or self.buffers or self.held == before
        assert refusal or (salt, prefix) in self.held or self.needs_snapshot
        held_bytes = self.cache.statistics().held_bytes
        if self.grain == 1 and not self.states and held_bytes > bytes_before:
            assert held_bytes <= SMALL.held_share * self.room + TOKEN_BYTES

    @rule(
        tokens=st.lists(st.integers(0, 2), max_size=10),
        salt=salts,
        system=st.integers(0, 3),
        session=st.sampled_from([None, "a", "b"]),
    )
    def lookup(self, tokens: list[int], salt: str, system: int, session: str | None) -> None:
        usable = set(self.states) if self.needs_snapshot else self.held
        expected = longest(usable, salt, tokens, len(tokens) - 1)
        assert self.cache.find(at(tokens, salt)).length == expected
        before = self.held
        lease = self.cache.match_and_lease(self.known(tokens, salt), system, session)
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
        kept = self.cache.attach(self.known([*prefix, 0], salt), state, len(prefix))
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
            assert not self.cache.attach(at(tokens, salt), State(tuple(tokens)))
            self.observe()
            assert self.states == before

    @rule(running=st.integers(0, 20 * TOKEN_BYTES))
    def reserve(self, running: int) -> None:
        self.running, before = running, self.held
        enough = self.cache.nbytes <= self.room
        self.cache.set_running_bytes(running)
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
        check_integrity(self.cache)
        held = sum(mark.held_bytes for mark in self.cache._marks.values())
        statistics = self.cache.statistics()
        assert statistics.held_bytes == held
        assert (statistics.query_tokens, statistics.hit_tokens) == (self.asked, self.hit)
        assert (statistics.tokens, statistics.leases) == (len(self.held), len(self.leases))
        assert len(self.cache._turns.ends) <= SMALL.sessions
        assert all(0 < len(ends) <= SMALL.branches_per_session for ends in self.cache._turns.ends.values())

    @invariant()
    def the_budget_holds_but_for_leases(self) -> None:
        if not hasattr(self, "cache"):
            return
        size = self.cache.statistics()
        if self.cache.nbytes > self.room or (
            self.buffers is not None and self.buffers.exceeded(size.nodes, size.snapshots)
        ):
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
TestPrefixCache.settings = settings(max_examples=examples(60), stateful_step_count=50, deadline=None)
