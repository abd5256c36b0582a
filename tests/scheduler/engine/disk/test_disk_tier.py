"""The disk tier: never in the way, never wrong, and found again. A state machine, a sentence for a rule."""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.block_file import Content, HostArray, encode
from scheduler.engine.disk.disk_folder import DiskFolder, DiskTierUnavailable
from scheduler.engine.disk.disk_reading import ReadOutcome
from scheduler.engine.disk.disk_tier import DiskTier
from tests.scheduler.engine.disk.disk_contents import (
    MODEL,
    SOON,
    content_of,
    files_in,
    put_all,
    put_snapshot,
    spelt,
    weight_of,
)

PLENTY = 10**9

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
        assert self.tier.settle(SOON)
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
        self.observe({other: its for other, its in self.held.items() if not self.stands_on(other, key)})

    def stands_on(
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
TestTier.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[DiskTier]:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    yield tier
    tier.close(SOON)


def read_all(tier: DiskTier, chain: Chain) -> ReadOutcome:
    outcome = tier.start_read(chain, 0, chain.tokens).wait(SOON)
    assert outcome is not None, "a reading did not end"
    return outcome


class Gate:
    """Holds a call of the disk's thread until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        real = getattr(DiskFolder, call)

        def wait(*arguments: object) -> object:
            self.reached.set()
            assert self.opened.wait(SOON)
            return real(*arguments)

        monkeypatch.setattr(DiskFolder, call, wait)


# What is handed over.


def test_what_one_service_wrote_the_next_one_reads(tmp_path: Path) -> None:
    first = DiskTier(tmp_path, MODEL, PLENTY)
    chain = first.chain(spelt("abc", 100), "tenant")
    assert put_all(first, chain)
    assert first.close(SOON)
    second = DiskTier(tmp_path, MODEL, PLENTY)
    assert second.match(chain, chain.tokens) == 768
    assert read_all(second, chain).blocks == tuple(content_of(chain.block(end)) for end in (256, 512, 768))
    second.close(SOON)


def test_another_salt_and_another_model_find_nothing(tmp_path: Path, tier: DiskTier) -> None:
    put_all(tier, tier.chain(spelt("ab"), "one"))
    assert tier.settle(SOON)
    assert tier.match(tier.chain(spelt("ab"), "two"), 512) == 0
    assert tier.close(SOON)
    other = DiskTier(tmp_path, "0" * 64, PLENTY)
    assert other.match(other.chain(spelt("ab"), "one"), 512) == 0
    other.close(SOON)


def test_a_disk_that_hangs_does_not_hold_the_caller(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call but `settle` and `close` returns while the writer hangs in a write."""
    gate = Gate(monkeypatch, "write")
    chain = tier.chain(spelt("ab"), "")
    assert put_all(tier, chain)
    assert gate.reached.wait(SOON)
    assert (tier.match(chain, 512), tier.touch(chain)) == (0, 512)
    assert put_snapshot(tier, chain, 300)
    assert tier.has_snapshot(chain, 300)
    assert tier.deepest_snapshot(chain, 512) == 0
    assert tier.statistics().pending_bytes > 0
    assert read_all(tier, chain) == ReadOutcome()
    assert not tier.settle(0)
    gate.opened.set()
    assert tier.settle(SOON)
    assert tier.match(chain, 512) == 512


def test_a_full_queue_drops_the_newest_and_what_would_stand_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, "write")
    room = 2 * content_of(Chain(MODEL, "", spelt("a")).block(256)).nbytes
    tier = DiskTier(tmp_path, MODEL, PLENTY, queue_bytes=room)
    chain = tier.chain(spelt("abcd"), "")
    assert not put_all(tier, chain)
    statistics = tier.statistics()
    assert (statistics.pending_bytes, statistics.dropped_writes) == (room, 2)
    gate.opened.set()
    assert tier.settle(SOON)
    assert tier.match(chain, chain.tokens) == 512
    assert put_all(tier, chain), "there is room again"
    assert tier.close(SOON)


def test_what_is_there_or_on_its_way_is_not_written_again(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    assert put_all(tier, chain)
    assert put_all(tier, chain)
    assert tier.settle(SOON)
    assert put_all(tier, chain)
    assert tier.settle(SOON)
    assert tier.statistics().writes == 2
    assert tier.statistics().dropped_writes == 0


def test_a_block_before_its_parent_is_dropped(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    assert not tier.put_block_nowait(chain, 512, content_of(chain.block(512)))
    assert tier.statistics().dropped_writes == 1


def test_while_the_disk_refuses_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: DiskFolder, place: Place, parts: list[bytes]) -> None:
        raise OSError(28, "No space left on device")

    now = 0.0
    tier = DiskTier(tmp_path, MODEL, PLENTY, clock=lambda: now)
    chain = tier.chain(spelt("ab"), "")
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "write", refuse)
        put_all(tier, chain)
        assert tier.settle(SOON)
        assert not put_all(tier, chain)
    assert tier.statistics().errors["full"] == 1
    assert tier.statistics().pending_bytes == 0
    now = 1.0
    assert put_all(tier, chain)
    assert tier.settle(SOON)
    assert tier.match(chain, 512) == 512
    tier.close(SOON)


def test_content_that_cannot_be_written_is_counted_and_the_next_is_written(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    assert tier.put_block_nowait(chain, 256, Content({}, {"not JSON": object()}))
    assert tier.settle(SOON)
    statistics = tier.statistics()
    assert (statistics.errors["io"], statistics.dropped_writes, statistics.pending_bytes) == (1, 1, 0)
    assert put_all(tier, chain)
    assert tier.settle(SOON)
    assert tier.match(chain, 512) == 512


def test_a_touched_path_outlives_what_was_used_since(tmp_path: Path) -> None:
    place = Chain(MODEL, "", spelt("a")).block(256)
    size = sum(len(part) for part in encode(content_of(place), place, MODEL))
    tier = DiskTier(tmp_path, MODEL, 2 * size)
    old, young, new = (tier.chain(spelt(letter), "") for letter in "abc")
    for chain in (old, young):
        put_all(tier, chain)
    assert tier.settle(SOON)
    tier.touch(old)
    put_all(tier, new)
    assert tier.settle(SOON)
    assert [tier.match(chain, 256) for chain in (old, young, new)] == [256, 0, 256]
    assert tier.close(SOON)


def test_two_snapshots_at_one_position_are_told_apart(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chains = [tier.chain([*spelt("a"), end], "") for end in (1, 2, 3)]
    put_all(tier, chains[0])
    for chain in chains[:2]:
        assert put_snapshot(tier, chain, 257)
    assert tier.settle(SOON)
    assert [tier.deepest_snapshot(chain, 257) for chain in chains] == [257, 257, 0]
    os.truncate(files_in(tmp_path)[chains[0].snapshot(257, alone=False).file_name], 3)
    assert tier.start_read(chains[0], 0, 0, snapshot=257).wait(SOON) == ReadOutcome()
    assert [tier.deepest_snapshot(chain, 257) for chain in chains] == [0, 257, 0]
    assert tier.check_integrity() == []
    assert tier.close(SOON)


def test_what_was_written_or_read_is_let_go(tier: DiskTier) -> None:
    """By idle threads too: it may be hundreds of megabytes."""
    chain = tier.chain(spelt("a"), "")
    data = memoryview(bytes(64))
    written = weakref.ref(data)
    tier.put_block_nowait(chain, 256, Content({"a": HostArray("U8", (64,), data)}))
    del data
    assert tier.settle(SOON)
    assert written() is None
    (content,) = read_all(tier, chain).blocks
    read = weakref.ref(content.arrays["a"].data)
    del content
    read_all(tier, tier.chain([], ""))  # The reader is through with the first.
    assert read() is None


# Readings.


def test_a_reading_is_pending_until_its_thread_is_through(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = tier.chain(spelt("ab"), "")
    put_all(tier, chain)
    assert tier.settle(SOON)
    gate, told = Gate(monkeypatch, "read"), threading.Event()
    reading = tier.start_read(chain, 0, 512, when_done=told.set)
    assert gate.reached.wait(SOON)
    assert reading.poll() is None
    assert not told.is_set()
    gate.opened.set()
    assert told.wait(SOON)
    outcome = reading.poll()
    assert outcome is not None
    assert len(outcome.blocks) == 2
    assert tier.statistics().reads == 2
    assert tier.statistics().read_bytes == tier.statistics().nbytes


def test_a_cancelled_reading_ends_before_the_next_file(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = tier.chain(spelt("ab"), "")
    put_all(tier, chain)
    assert tier.settle(SOON)
    gate = Gate(monkeypatch, "read")
    reading = tier.start_read(chain, 0, 512)
    assert gate.reached.wait(SOON)
    reading.cancel()
    gate.opened.set()
    assert reading.wait(SOON) == ReadOutcome()
    assert tier.statistics().reads == 1


def test_only_the_blocks_that_are_asked_for_are_read(tier: DiskTier) -> None:
    chain = tier.chain(spelt("abcd", 5), "")
    put_all(tier, chain)
    assert tier.settle(SOON)
    outcome = tier.start_read(chain, 256, 1000).wait(SOON)
    assert outcome == ReadOutcome((content_of(chain.block(512)), content_of(chain.block(768))))
    assert tier.start_read(chain, 0, 255).wait(SOON) == ReadOutcome()
    assert tier.statistics().reads == 2


def test_blocks_before_a_damaged_one_are_read_but_no_snapshot_after_it(
    tier: DiskTier, tmp_path: Path
) -> None:
    chain = tier.chain(spelt("ab", 9), "")
    put_all(tier, chain)
    put_snapshot(tier, chain, 521)
    assert tier.settle(SOON)
    os.truncate(files_in(tmp_path)[chain.block(512).file_name], 20)
    assert tier.deepest_snapshot(chain, 520) == 0
    assert tier.deepest_snapshot(chain, 521) == 521
    outcome = tier.start_read(chain, 0, 512, snapshot=521).wait(SOON)
    assert outcome == ReadOutcome((content_of(chain.block(256)),))
    assert tier.deepest_snapshot(chain, 521) == 0
    assert tier.settle(SOON)
    assert set(files_in(tmp_path)) == {chain.block(256).file_name}


def test_where_the_snapshot_is_damaged_no_block_is_read(tier: DiskTier, tmp_path: Path) -> None:
    chain = tier.chain(spelt("a", 9), "")
    put_all(tier, chain)
    put_snapshot(tier, chain, 265)
    assert tier.settle(SOON)
    os.truncate(files_in(tmp_path)[chain.snapshot(265, alone=False).file_name], 20)
    assert tier.start_read(chain, 0, 256, snapshot=265).wait(SOON) == ReadOutcome()
    assert tier.statistics().reads == 0
    assert tier.match(chain, 256) == 256


def test_an_error_that_nobody_expected_ends_the_reading_and_not_the_reader(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(folder: DiskFolder, place: Place, nbytes: int) -> bytes:
        raise MemoryError

    chain = tier.chain(spelt("a"), "")
    put_all(tier, chain)
    assert tier.settle(SOON)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "read", too_large)
        assert read_all(tier, chain) == ReadOutcome()
    assert tier.statistics().errors["io"] == 1
    assert len(read_all(tier, chain).blocks) == 1, "the file has done nothing wrong"


def test_who_is_told_of_a_readings_end_cannot_end_the_reader(tier: DiskTier) -> None:
    def fail() -> None:
        raise RuntimeError

    chain = tier.chain(spelt("a"), "")
    assert tier.start_read(chain, 0, 256, when_done=fail).wait(SOON) == ReadOutcome()
    assert read_all(tier, chain) == ReadOutcome()


# The end.


def test_closing_writes_what_was_put(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chain = tier.chain(spelt("abcd"), "")
    put_all(tier, chain)
    assert tier.close(SOON)
    assert len(files_in(tmp_path)) == 4


def test_closing_does_not_wait_longer_than_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stays taken as long as the disk hangs: a file may still come into being."""
    gate = Gate(monkeypatch, "write")
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chain = tier.chain(spelt("abcd"), "")
    put_all(tier, chain)
    assert gate.reached.wait(SOON)
    assert not tier.close(0)
    assert tier.statistics().dropped_writes == 3
    with pytest.raises(DiskTierUnavailable, match="another service uses it"):
        DiskTier(tmp_path, MODEL, PLENTY)
    gate.opened.set()
    assert tier.close(SOON)
    assert len(files_in(tmp_path)) == 1
    DiskTier(tmp_path, MODEL, PLENTY).close(SOON)


def test_closing_ends_readings_under_way_and_to_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chain = tier.chain(spelt("ab"), "")
    put_all(tier, chain)
    assert tier.settle(SOON)
    gate = Gate(monkeypatch, "read")
    readings = [tier.start_read(chain, 0, 512) for _ in range(3)]
    assert gate.reached.wait(SOON)
    tier.close(0)
    assert not put_all(tier, tier.chain(spelt("c"), ""))
    late = tier.start_read(chain, 0, 512)
    assert late.poll() == ReadOutcome()
    gate.opened.set()
    outcomes = [reading.wait(SOON) for reading in readings]
    assert [outcome is not None and len(outcome.blocks) for outcome in outcomes] == [1, 0, 0]


def test_two_services_do_not_share_a_folder(tier: DiskTier, tmp_path: Path) -> None:
    with pytest.raises(DiskTierUnavailable, match="another service uses it"):
        DiskTier(tmp_path, MODEL, PLENTY)
    assert tier.close(SOON)
    assert DiskTier(tmp_path, MODEL, PLENTY).close(SOON)


def test_a_folder_that_cannot_be_scanned_is_free_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: DiskFolder) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "scan", refuse)
        with pytest.raises(DiskTierUnavailable, match="Permission denied"):
            DiskTier(tmp_path, MODEL, PLENTY)
    assert DiskTier(tmp_path, MODEL, PLENTY).close(SOON)
