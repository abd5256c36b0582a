"""Readings from the disk tier: pending, cancelled, damaged; no error ends the reader thread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import Place
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome
from tests.scheduler.engine.disk.disk_contents import (
    SOON,
    content_of,
    files_in,
    put_all,
    put_snapshot,
    read_all,
    spelt,
)
from tests.scheduler.engine.disk.gate import Gate


def test_a_reading_is_pending_until_its_thread_is_through(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = tier.chain(spelt("ab"), "")
    put_all(tier, chain)
    assert tier.flush(SOON)
    gate = Gate(monkeypatch, "read")
    reading = tier.start_read(chain, 0, 512)
    assert gate.reached.wait(SOON)
    assert not reading.done()
    gate.opened.set()
    assert len(reading.result(SOON).blocks) == 2
    assert tier.statistics().reads == 2
    assert tier.statistics().read_bytes == tier.statistics().nbytes


def test_a_cancelled_reading_ends_before_the_next_file(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = tier.chain(spelt("ab"), "")
    put_all(tier, chain)
    assert tier.flush(SOON)
    gate = Gate(monkeypatch, "read")
    reading = tier.start_read(chain, 0, 512)
    assert gate.reached.wait(SOON)
    assert reading.cancel()
    gate.opened.set()
    read_all(tier, tier.chain([], ""))  # The reader is through with the first.
    assert tier.statistics().reads == 1


def test_only_the_blocks_that_are_asked_for_are_read(tier: DiskTier) -> None:
    chain = tier.chain(spelt("abcd", 5), "")
    put_all(tier, chain)
    assert tier.flush(SOON)
    outcome = tier.start_read(chain, 256, 1000).result(SOON)
    assert outcome == ReadOutcome((content_of(chain.block(512)), content_of(chain.block(768))))
    assert tier.start_read(chain, 0, 255).result(SOON) == ReadOutcome()
    assert tier.statistics().reads == 2


def test_blocks_before_a_damaged_one_are_read_but_no_snapshot_after_it(
    tier: DiskTier, tmp_path: Path
) -> None:
    chain = tier.chain(spelt("ab", 9), "")
    put_all(tier, chain)
    put_snapshot(tier, chain, 521)
    assert tier.flush(SOON)
    os.truncate(files_in(tmp_path)[chain.block(512).file_name], 20)
    assert tier.deepest_snapshot(chain, 520) == 0
    assert tier.deepest_snapshot(chain, 521) == 521
    outcome = tier.start_read(chain, 0, 512, snapshot=521).result(SOON)
    assert outcome == ReadOutcome((content_of(chain.block(256)),))
    assert tier.deepest_snapshot(chain, 521) == 0
    assert tier.flush(SOON)
    assert chain.block(512).file_name not in files_in(tmp_path)


def test_where_the_snapshot_is_damaged_no_block_is_read(tier: DiskTier, tmp_path: Path) -> None:
    chain = tier.chain(spelt("a", 9), "")
    put_all(tier, chain)
    put_snapshot(tier, chain, 265)
    assert tier.flush(SOON)
    os.truncate(files_in(tmp_path)[chain.snapshot(265).file_name], 20)
    assert tier.start_read(chain, 0, 256, snapshot=265).result(SOON) == ReadOutcome()
    assert tier.statistics().reads == 0
    assert tier.match(chain, 256) == 256


def test_an_error_that_nobody_expected_ends_the_reading_and_not_the_reader(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(folder: DiskFolder, place: Place, nbytes: int) -> bytes:
        raise MemoryError

    chain = tier.chain(spelt("a"), "")
    put_all(tier, chain)
    assert tier.flush(SOON)
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "read", too_large)
        assert read_all(tier, chain) == ReadOutcome()
    assert tier.statistics().errors["io"] == 1
    assert len(read_all(tier, chain).blocks) == 1, "the file has done nothing wrong"
