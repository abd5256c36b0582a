"""The disk tier: it never blocks, is never wrong, and survives a restart. A sentence for each rule."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import Chain, Place
from scheduler.engine.disk.block_file import Content, HostArray, encode
from scheduler.engine.disk.disk_folder import DiskFolder, DiskTierUnavailable
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome
from tests.scheduler.engine.disk.disk_contents import (
    MODEL,
    PLENTY,
    SOON,
    content_of,
    files_in,
    put_all,
    put_snapshot,
    read_all,
    spelt,
)
from tests.scheduler.engine.disk.gate import Gate

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
    assert tier.flush(SOON)
    assert tier.match(tier.chain(spelt("ab"), "two"), 512) == 0
    assert tier.close(SOON)
    other = DiskTier(tmp_path, "0" * 64, PLENTY)
    assert other.match(other.chain(spelt("ab"), "one"), 512) == 0
    other.close(SOON)


def test_a_disk_that_hangs_does_not_hold_the_caller(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call but `flush` and `close` returns while the writer hangs in a write."""
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
    assert not tier.flush(0)
    gate.opened.set()
    assert tier.flush(SOON)
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
    assert tier.flush(SOON)
    assert tier.match(chain, chain.tokens) == 512
    assert put_all(tier, chain), "there is room again"
    assert tier.close(SOON)


def test_what_is_there_or_on_its_way_is_not_written_again(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    assert put_all(tier, chain)
    assert put_all(tier, chain)
    assert tier.flush(SOON)
    assert put_all(tier, chain)
    assert tier.flush(SOON)
    assert tier.statistics().writes == 2
    assert tier.statistics().dropped_writes == 0


def test_a_block_without_the_one_before_is_dropped(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    tier.put_block_nowait(chain, 512, content_of(chain.block(512)))
    assert tier.flush(SOON)
    assert (tier.statistics().dropped_writes, tier.statistics().files) == (1, 0)


def test_while_the_disk_refuses_nothing_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: DiskFolder, place: Place, parts: list[bytes]) -> None:
        raise OSError(28, "No space left on device")

    now = 0.0
    tier = DiskTier(tmp_path, MODEL, PLENTY, clock=lambda: now)
    chain = tier.chain(spelt("ab"), "")
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "write", refuse)
        put_all(tier, chain)
        assert tier.flush(SOON)
        assert not put_all(tier, chain)
    assert tier.statistics().errors["full"] == 1
    assert tier.statistics().pending_bytes == 0
    now = 1.0
    assert put_all(tier, chain)
    assert tier.flush(SOON)
    assert tier.match(chain, 512) == 512
    tier.close(SOON)


def test_content_that_cannot_be_written_is_counted_and_the_next_is_written(tier: DiskTier) -> None:
    chain = tier.chain(spelt("ab"), "")
    assert tier.put_block_nowait(chain, 256, Content({}, {"not JSON": object()}))
    assert tier.flush(SOON)
    statistics = tier.statistics()
    assert (statistics.errors["io"], statistics.dropped_writes, statistics.pending_bytes) == (1, 1, 0)
    assert put_all(tier, chain)
    assert tier.flush(SOON)
    assert tier.match(chain, 512) == 512


def test_a_touched_path_outlives_what_was_used_since(tmp_path: Path) -> None:
    place = Chain(MODEL, "", spelt("a")).block(256)
    size = sum(len(part) for part in encode(content_of(place), place, MODEL))
    tier = DiskTier(tmp_path, MODEL, 2 * size)
    old, young, new = (tier.chain(spelt(letter), "") for letter in "abc")
    for chain in (old, young):
        put_all(tier, chain)
    assert tier.flush(SOON)
    tier.touch(old)
    put_all(tier, new)
    assert tier.flush(SOON)
    assert [tier.match(chain, 256) for chain in (old, young, new)] == [256, 0, 256]
    assert tier.close(SOON)


def test_two_snapshots_at_one_position_are_kept_apart(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chains = [tier.chain([*spelt("a"), end], "") for end in (1, 2, 3)]
    put_all(tier, chains[0])
    for chain in chains[:2]:
        assert put_snapshot(tier, chain, 257)
    assert tier.flush(SOON)
    assert [tier.deepest_snapshot(chain, 257) for chain in chains] == [257, 257, 0]
    os.truncate(files_in(tmp_path)[chains[0].snapshot(257).file_name], 3)
    assert tier.start_read(chains[0], 0, 0, snapshot=257).result(SOON) == ReadOutcome()
    assert [tier.deepest_snapshot(chain, 257) for chain in chains] == [0, 257, 0]
    assert tier.close(SOON)


def test_what_was_written_or_read_is_let_go(tier: DiskTier) -> None:
    """By idle threads too: it may be hundreds of megabytes."""
    chain = tier.chain(spelt("a"), "")
    data = memoryview(bytes(64))
    written = weakref.ref(data)
    tier.put_block_nowait(chain, 256, Content({"a": HostArray("U8", (64,), data)}))
    del data
    assert tier.flush(SOON)
    assert written() is None
    (content,) = read_all(tier, chain).blocks
    read = weakref.ref(content.arrays["a"].data)
    del content
    read_all(tier, tier.chain([], ""))  # The reader is through with the first.
    assert read() is None


# The end.


def test_closing_writes_what_was_put(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    chain = tier.chain(spelt("abcd"), "")
    put_all(tier, chain)
    assert tier.close(SOON)
    assert len(files_in(tmp_path)) == 4


def test_the_folder_stays_taken_as_long_as_the_disk_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file may still come into being."""
    gate = Gate(monkeypatch, "write")
    tier = DiskTier(tmp_path, MODEL, PLENTY)
    put_all(tier, tier.chain(spelt("ab"), ""))
    assert gate.reached.wait(SOON)
    assert not tier.close(0)
    with pytest.raises(DiskTierUnavailable, match="another service uses it"):
        DiskTier(tmp_path, MODEL, PLENTY)
    gate.opened.set()
    assert tier.close(SOON)
    assert len(files_in(tmp_path)) == 2
    DiskTier(tmp_path, MODEL, PLENTY).close(SOON)


def test_two_services_do_not_share_a_folder(tier: DiskTier, tmp_path: Path) -> None:
    with pytest.raises(DiskTierUnavailable, match="another service uses it"):
        DiskTier(tmp_path, MODEL, PLENTY)
    assert tier.close(SOON)
    assert DiskTier(tmp_path, MODEL, PLENTY).close(SOON)
