"""The disk tier under any order of operations, against a dictionary."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.disk_reading import ReadOutcome
from scheduler.engine.disk.disk_tier import DiskTier
from tests.examples import examples
from tests.scheduler.engine.disk.disk_contents import (
    MODEL,
    PLENTY,
    SOON,
    content_of,
    files_in,
    put_all,
    put_snapshot,
    spelt,
    weight_of,
)

Words: TypeAlias = tuple[str, str, int]
"""Salt, a letter for each block, tokens after them: a prefix."""

prefixes = st.tuples(st.sampled_from(["", "tenant"]), st.text("ab", max_size=4), st.sampled_from([0, 1, 255]))


class TierMachine(RuleBasedStateMachine):
    """Any order of everything on one folder. The oracle is a dictionary from prefixes to what belongs there,
    with keys of tokens and not of digests."""

    @initialize(budget=st.one_of(st.just(PLENTY), st.integers(0, 12_000)), lone=st.booleans())
    def begin(self, budget: int, lone: bool) -> None:
        self.stack = ExitStack()
        self.path = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        patches = self.stack.enter_context(pytest.MonkeyPatch.context())
        patches.setattr(os, "fsync", lambda file: None)  # Nobody pulls the plug here.
        self.budget, self.lone = budget, lone
        self.held: dict[tuple[str, str, tuple[int, ...]], Place] = {}
        self.tier = DiskTier(self.path, MODEL, budget, lone_snapshots=lone)

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close(SOON)
            self.stack.close()

    def chain(self, words: Words) -> Chain:
        return self.tier.chain(spelt(words[1], words[2]), words[0])

    def keys_of(self, words: Words) -> list[tuple[str, str, tuple[int, ...]]]:
        salt, letters, _ = words
        return [("b", salt, tuple(spelt(letters[:n]))) for n in range(1, len(letters) + 1)]

    def state_of(self, words: Words) -> tuple[str, str, tuple[int, ...]]:
        return ("s", words[0], tuple(spelt(words[1], words[2])))

    def observe(self, expected: dict[tuple[str, str, tuple[int, ...]], Place]) -> None:
        """With room for all, exactly what is expected is there; else some of it."""
        assert self.tier.flush(SOON)
        names = files_in(self.path)
        self.held = {key: place for key, place in expected.items() if place.file_name in names}
        assert self.budget < PLENTY or self.held == expected
        assert len(names) == len(self.held), "a file that nobody expected"

    @rule(words=prefixes)
    def put(self, words: Words) -> None:
        chain = self.chain(words)
        put_all(self.tier, chain)
        new = {
            key: chain.block(BLOCK_TOKENS * count) for count, key in enumerate(self.keys_of(words), start=1)
        }
        self.observe(self.held | new)

    @rule(words=prefixes.filter(lambda words: words[1] or words[2]))
    def put_state(self, words: Words) -> None:
        chain = self.chain(words)
        grounded = self.lone or set(self.keys_of(words)) <= self.held.keys()
        place = chain.snapshot(chain.tokens, self.lone)
        assert put_snapshot(self.tier, chain, chain.tokens, self.lone) == grounded
        self.observe(self.held | ({self.state_of(words): place} if grounded else {}))
        assert self.tier.has_snapshot(chain, chain.tokens) == (self.state_of(words) in self.held)

    @rule(words=prefixes, limit=st.integers(0, 1300))
    def look_up(self, words: Words, limit: int) -> None:
        chain, tokens = self.chain(words), spelt(words[1], words[2])
        there = [len(key[2]) for key in self.keys_of(words) if key in self.held]
        assert self.tier.match(chain, limit) == max((end for end in there if end <= limit), default=0)
        assert self.tier.touch(chain) == max(there, default=0)
        states = [
            len(key[2])
            for key in self.held
            if key[:2] == ("s", words[0]) and list(key[2]) == tokens[: len(key[2])] and len(key[2]) <= limit
        ]
        assert self.tier.deepest_snapshot(chain, limit) == max(states, default=0)

    @rule(words=prefixes, start=st.integers(0, 2))
    def read(self, words: Words, start: int) -> None:
        chain = self.chain(words)
        there = self.tier.match(chain, chain.tokens)
        state = self.tier.deepest_snapshot(chain, chain.tokens)
        start *= BLOCK_TOKENS
        reading = self.tier.start_read(chain, start, there, snapshot=state)
        outcome = reading.wait(SOON)
        ends = range(start + BLOCK_TOKENS, there + 1, BLOCK_TOKENS)
        assert outcome is not None
        assert outcome.blocks == tuple(content_of(chain.block(end)) for end in ends)
        wanted = content_of(chain.snapshot(state, self.lone)) if state else None
        assert outcome.snapshot == wanted

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """One file, in any way; then it is read."""
        key = sorted(self.held)[data.draw(st.integers(0, len(self.held) - 1))]
        place = self.held[key]
        file = files_in(self.path)[place.file_name]
        content = bytearray(file.read_bytes())
        how = data.draw(st.sampled_from(["flip", "cut", "delete"]))
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= 1
        file.write_bytes(content if how == "flip" else content[:at])
        if how == "delete":
            file.unlink()
        chain = self.tier.chain(key[2], key[1])
        start, state = (chain.tokens - BLOCK_TOKENS, 0) if key[0] == "b" else (0, chain.tokens)
        errors = sum(self.tier.statistics().errors.values())
        outcome = self.tier.start_read(
            chain, start, chain.tokens if key[0] == "b" else 0, snapshot=state
        ).wait(SOON)
        assert outcome == ReadOutcome()
        assert sum(self.tier.statistics().errors.values()) == errors + 1
        self.observe({other: its for other, its in self.held.items() if not self.parent_tokens(other, key)})

    def parent_tokens(
        self, upper: tuple[str, str, tuple[int, ...]], lower: tuple[str, str, tuple[int, ...]]
    ) -> bool:
        below = lower[0] == "b" and (upper[0] == "b" or not self.lone)
        return upper == lower or (below and upper[1] == lower[1] and upper[2][: len(lower[2])] == lower[2])

    @rule()
    def restart(self) -> None:
        assert self.tier.close(SOON)
        self.tier = DiskTier(self.path, MODEL, self.budget, lone_snapshots=self.lone)
        before = self.held
        self.observe(self.held)
        assert self.held == before

    @invariant()
    def all_is_in_order(self) -> None:
        if hasattr(self, "tier"):
            held = self.tier.statistics()
            weight = weight_of(files_in(self.path).values())
            assert (held.files, held.nbytes, held.pending_bytes) == (len(self.held), weight, 0)
            assert weight <= self.budget
            assert self.tier.check_integrity() == []


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)
