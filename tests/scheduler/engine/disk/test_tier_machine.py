"""The disk tier under any order of operations, faults and crashes, against a dictionary."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.disk.block_chain import BLOCK_TOKENS, Chain, Place
from scheduler.engine.disk.block_file import encode
from scheduler.engine.disk.disk_folder import DiskTierUnavailable
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome
from tests.examples import examples
from tests.scheduler.engine.disk.disk_contents import (
    LONG_AGO,
    MODEL,
    PLENTY,
    SIZE,
    SOON,
    Clock,
    content_of,
    files_in,
    put_all,
    put_snapshot,
    spelt,
    weight_of,
)

Words: TypeAlias = tuple[str, str, int]
"""Salt, a letter for each block, tokens after them: a prefix."""
Name: TypeAlias = tuple[str, str, tuple[int, ...]]
"""What a file holds, in tokens and not in digests: "b" or "s", the salt, and all tokens up to its end."""

salts, rests = st.sampled_from(["", "tenant"]), st.sampled_from([0, 1, 255])
chains = ["b", "a", "ab", "aba", "abab", "abba", "abb", "bbbb"]
"""They have few letters, so that they share their beginnings."""
prefixes = st.tuples(salts, st.sampled_from(["", *chains]), rests)
whole_prefixes = st.tuples(salts, st.sampled_from(chains), rests)


class TierMachine(RuleBasedStateMachine):
    """Any order of everything on one folder.

    A match is a contiguous chain from the root, and what is read of it has the right bytes. The folder never
    holds more than the budget, in the middle of an operation either. Nothing comes from a damaged or foreign
    file. What lost its predecessor is not found, and its bytes return when others need them; without faults
    nothing loses it. A restart finds what was there.
    """

    @initialize(
        budget=st.sampled_from([5 * SIZE, 3 * SIZE + 300, 12 * SIZE, PLENTY, 0]),
        calm=st.booleans(),
    )
    def begin(self, budget: int, calm: bool) -> None:
        self.stack = ExitStack()
        self.path = self.new_folder()
        self.patches = self.stack.enter_context(pytest.MonkeyPatch.context())
        self.patches.setattr(os, "fsync", lambda file: None)  # Nobody pulls the plug here.
        self.budget, self.calm, self.clock = budget, calm, Clock()
        self.held: dict[Name, Place] = {}
        self.wrong: set[str] = set()
        """Names of files whose bytes are not what they should be, which nobody has noticed yet."""
        self.foreign: set[str] = set()
        self.fresh = 0
        self.tier = self.open()

    def teardown(self) -> None:
        if hasattr(self, "tier"):
            self.tier.close(SOON)
            self.stack.close()

    def new_folder(self) -> Path:
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory())) / "tier"

    def open(self) -> DiskTier:
        return DiskTier(self.path, MODEL, self.budget, clock=self.clock)

    def chain(self, words: Words) -> Chain:
        return self.tier.chain(spelt(words[1], words[2]), words[0])

    def blocks_of(self, words: Words) -> dict[Name, Place]:
        chain, (salt, letters, _) = self.chain(words), words
        counts = range(1, len(letters) + 1)
        return {("b", salt, tuple(spelt(letters[:n]))): chain.block(BLOCK_TOKENS * n) for n in counts}

    def state_of(self, words: Words) -> dict[Name, Place]:
        chain = self.chain(words)
        return {("s", words[0], tuple(spelt(words[1], words[2]))): chain.snapshot(chain.tokens)}

    def leading(self, words: Words) -> list[int]:
        """The ends of the blocks that are there without a gap."""
        ends = []
        for name in self.blocks_of(words):
            if name not in self.held:
                break
            ends.append(len(name[2]))
        return ends

    def stands(self, name: Name) -> bool:
        """Whether all that it needs is there."""
        kind, salt, tokens = name
        needs = len(tokens) // BLOCK_TOKENS - (kind == "b")
        return all(("b", salt, tokens[: BLOCK_TOKENS * n]) in self.held for n in range(1, needs + 1))

    def observe(self, expected: dict[Name, Place]) -> None:
        """With room for all, exactly what is expected is there; else some of it."""
        assert self.tier.flush(SOON)
        names = files_in(self.path).keys()
        self.held = {name: place for name, place in expected.items() if place.file_name in names}
        assert self.budget < PLENTY or self.held == expected
        self.foreign &= names
        self.wrong &= names
        assert names == {place.file_name for place in self.held.values()} | self.foreign

    @rule(words=prefixes)
    def put(self, words: Words) -> None:
        put_all(self.tier, self.chain(words))
        self.observe(self.held | self.blocks_of(words))

    @rule(words=prefixes.filter(lambda words: bool(words[1] or words[2])))
    def put_state(self, words: Words) -> None:
        state, chain = self.state_of(words), self.chain(words)
        (name,) = state
        put_snapshot(self.tier, chain, chain.tokens)
        stands = not words[1] or ("b", words[0], tuple(spelt(words[1]))) in self.held
        self.observe(self.held | (state if stands else {}))
        assert self.tier.has_snapshot(chain, chain.tokens) == (name in self.held)

    @rule(words=prefixes, limit=st.integers(0, 1300))
    def look_up(self, words: Words, limit: int) -> None:
        chain, tokens, there = self.chain(words), spelt(words[1], words[2]), self.leading(words)
        assert self.tier.match(chain, limit) == max((end for end in there if end <= limit), default=0)
        assert self.tier.touch(chain) == max(there, default=0)
        states = [
            len(name[2])
            for name in self.held
            if name[:2] == ("s", words[0]) and list(name[2]) == tokens[: len(name[2])] and self.stands(name)
        ]
        fits = [position for position in states if position <= limit]
        assert self.tier.deepest_snapshot(chain, limit) == max(fits, default=0)

    @rule(words=prefixes, start=st.integers(0, 2))
    def read(self, words: Words, start: int) -> None:
        """What is wrong is noticed when its turn comes, and the reading ends there."""
        chain = self.chain(words)
        there, state = self.tier.match(chain, chain.tokens), self.tier.deepest_snapshot(chain, chain.tokens)
        start *= BLOCK_TOKENS
        outcome = self.tier.start_read(chain, start, there, snapshot=state).result(SOON)
        blocks = [chain.block(end) for end in range(start + BLOCK_TOKENS, there + 1, BLOCK_TOKENS)]
        snapshots = [chain.snapshot(state)] if state else []
        order = [*snapshots, *blocks]
        bad = next((place for place in order if place.file_name in self.wrong), None)
        read = order if bad is None else order[: order.index(bad)]
        assert outcome.blocks == tuple(map(content_of, read[len(snapshots) :]))
        assert outcome.snapshot == (content_of(snapshots[0]) if state and bad is None else None)
        if bad is not None:
            self.wrong.discard(bad.file_name)
            self.observe({name: place for name, place in self.held.items() if place != bad})

    @precondition(lambda self: not self.calm)
    @rule(
        which=st.integers(0, 20),
        at=st.integers(0, 400),
        how=st.sampled_from(["flip", "cut", "delete", "another's"]),
        read=st.booleans(),
    )
    def damage(self, which: int, at: int, how: str, read: bool) -> None:
        """A file; nobody sees it until it is read."""
        if not self.held:
            return
        name = sorted(self.held)[which % len(self.held)]
        place = self.held[name]
        if place.file_name in self.wrong:
            return
        file = files_in(self.path)[place.file_name]
        content = bytearray(file.read_bytes())
        content[at] ^= 1
        match how:
            case "flip":
                file.write_bytes(content)
            case "cut":
                file.write_bytes(content[:at])
            case "delete":
                file.unlink()
            case "another's":
                file.write_bytes(b"".join(encode(content_of(place), place, "0" * 64)))
        if read or how == "delete":
            self.notice_loss(name)
        else:
            self.wrong.add(place.file_name)

    def notice_loss(self, name: Name) -> None:
        kind, salt, tokens = name
        chain, end = self.tier.chain(tokens, salt), len(tokens)
        reading = (
            self.tier.start_read(chain, end - BLOCK_TOKENS, end)
            if kind == "b"
            else self.tier.start_read(chain, 0, 0, snapshot=end)
        )
        assert reading.result(SOON) == ReadOutcome()
        self.observe({other: place for other, place in self.held.items() if other != name})

    @precondition(lambda self: not self.calm)
    @rule(
        words=whole_prefixes,
        kind=st.sampled_from(
            ["right", "right", "another model's", "other parent", "itself", "other version", "ours"]
        ),
    )
    def copy_in(self, words: Words, kind: str) -> None:
        """A block, without those before it, or another file whose name looks like one."""
        (name, place) = list(self.blocks_of(words).items())[-1]
        content = b"".join(encode(content_of(place), place, MODEL))
        file_name = place.file_name
        match kind:
            case "another model's":
                file_name = Chain("0" * 64, words[0], spelt(words[1])).block(place.position).file_name
            case "other parent":
                file_name = Place(place.key, bytes(20), "b", place.position).file_name
            case "itself":
                file_name = Place(place.key, place.key, "b", place.position + BLOCK_TOKENS).file_name
            case "other version":
                file_name = place.file_name.replace(".kv1.", ".kv2.")
            case "ours":
                file_name = "notes"
        if file_name in files_in(self.path) or place.file_name in self.wrong:
            return
        file = self.path / file_name
        file.write_bytes(content)
        os.utime(file, (LONG_AGO, LONG_AGO))
        self.clock.now += 5
        assert self.tier.looks_again()
        self.foreign |= {file_name} if kind not in ("right", "other version") else set()
        self.observe(self.held | ({name: place} if kind == "right" else {}))
        if kind == "ours":
            assert file.exists(), "it is not the tier's"
            file.unlink()
            self.foreign.discard(file_name)

    @rule()
    def open_beside(self) -> None:
        with pytest.raises(DiskTierUnavailable, match="another service uses it"):
            self.open()

    @rule()
    def restart(self) -> None:
        assert self.tier.close(SOON)
        self.observe_restart()

    def observe_restart(self) -> None:
        there = files_in(self.path)
        expected = {name: place for name, place in self.held.items() if place.file_name in there}
        self.wrong &= there.keys()
        self.tier = self.open()
        self.observe(expected)
        assert self.held == expected

    @rule(
        words=whole_prefixes,
        call=st.sampled_from(["open", "write", "replace", "unlink", "utime"]),
        number=st.integers(0, 5),
    )
    def crash(self, words: Words, call: str, number: int) -> None:
        """A kill at any call of a write: what lay in the folder then is where the next service begins."""
        left, real = self.new_folder(), getattr(os, call)
        calls, copying = number, False

        def watched(*arguments: Any, **options: Any) -> object:
            nonlocal calls, copying
            calls -= not copying
            if calls < 0 and not copying and not left.exists():
                copying = True
                if call == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    os.lseek(arguments[0], -(len(arguments[1]) // 2), os.SEEK_CUR)
                shutil.copytree(self.path, left)
                copying = False
            return real(*arguments, **options)

        expected = self.held | self.blocks_of(words)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, call, watched)
            self.clock.now += 60
            put_all(self.tier, self.chain(words))
            assert self.tier.flush(SOON)
        assert self.tier.close(SOON)
        self.path = left if left.exists() else self.path
        assert weight_of(files_in(self.path).values()) <= self.budget
        self.held = expected
        self.observe_restart()

    @precondition(lambda self: not self.calm)
    @rule(
        words=whole_prefixes,
        call=st.sampled_from(["open", "write", "fsync", "replace", "unlink", "read", "utime"]),
        number=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EACCES]),
        passed=st.integers(0, 5),
    )
    def disk_fails(self, words: Words, call: str, number: int, passed: int) -> None:
        """From some call on until it is repaired; each failure is counted, and writes pause."""
        real, calls, failed = getattr(os, call), passed, False

        def failing(*arguments: Any, **options: Any) -> object:
            nonlocal calls, failed
            calls -= 1
            if calls >= 0:
                return real(*arguments, **options)
            failed = True
            raise OSError(number, os.strerror(number))

        chain, before = self.chain(words), sum(self.tier.statistics().errors.values())
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, call, failing)
            self.clock.now += 60
            put_all(self.tier, chain)
            assert self.tier.flush(SOON)
            if call != "unlink":  # A damaged file that cannot be deleted stays until the next start.
                self.tier.start_read(chain, 0, self.tier.match(chain, chain.tokens)).result(SOON)
            assert self.tier.flush(SOON)
        self.clock.now += 60
        assert not failed or sum(self.tier.statistics().errors.values()) > before
        names, expected = files_in(self.path), self.held | self.blocks_of(words)
        self.observe({name: place for name, place in expected.items() if place.file_name in names})

    @precondition(lambda self: self.budget < PLENTY)
    @rule()
    def press(self) -> None:
        """Enough that is new to fill the folder: all else goes, whatever it stands on."""
        new: dict[Name, Place] = {}
        for _ in range(self.budget // (SIZE - 20) + 1):
            self.fresh += 1
            words = (f"fresh {self.fresh}", "a", 0)
            put_all(self.tier, self.chain(words))
            new |= self.blocks_of(words)
        self.observe(self.held | new)
        assert self.held.keys() <= new.keys()
        assert not self.foreign

    @invariant()
    def all_is_in_order(self) -> None:
        if not hasattr(self, "tier"):
            return
        assert self.tier.flush(SOON)
        there = files_in(self.path)
        found = self.tier.statistics()
        assert weight_of(there.values()) <= self.budget
        assert found.pending_bytes == 0
        if not self.wrong:
            assert (found.files, found.nbytes) == (len(there), weight_of(there.values()))
        lost = [name for name in self.held if not self.stands(name)]
        assert not (self.calm and lost), "without a fault, something lost its predecessor"
        for kind, salt, tokens in lost:
            chain = self.tier.chain(tokens, salt)
            find = self.tier.match if kind == "b" else self.tier.deepest_snapshot
            assert find(chain, chain.tokens) < chain.tokens


TestTier = TierMachine.TestCase
TestTier.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)


def test_a_file_of_another_version_goes_each_time_it_is_copied_in() -> None:
    """The machine found it once in some hundred runs."""
    machine = TierMachine()
    machine.begin(budget=PLENTY, calm=False)
    try:
        for _ in range(2):
            machine.copy_in(kind="other version", words=("", "b", 0))
    finally:
        machine.teardown()
