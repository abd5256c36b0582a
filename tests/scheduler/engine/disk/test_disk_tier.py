"""What the disk tier's machine does not see: order, pauses, what hangs, the log and the counters."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import Chain, Place
from scheduler.engine.disk.block_file import Content
from scheduler.engine.disk.disk_folder import DiskFolder, DiskTierUnavailable
from scheduler.engine.disk.disk_tier import DiskTier, ReadOutcome
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
    read_all,
    spelt,
)


class Desk:
    """A folder and the tier on it, which can be closed and opened again; chains by their letters."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.tier = DiskTier(path, MODEL, PLENTY, clock=self.clock)

    def open(self, blocks: int) -> None:
        """With a budget of that many blocks."""
        self.tier.close(SOON)
        self.tier = DiskTier(self.path, MODEL, blocks * SIZE, clock=self.clock)

    def chain(self, letters: str) -> Chain:
        return self.tier.chain(spelt(letters), "")

    def save(self, letters: str) -> None:
        put_all(self.tier, self.chain(letters))
        assert self.tier.flush(SOON)

    def held(self) -> set[str]:
        """Every block that is found, as the letters of its chain."""
        chains = ("a", "ab", "abc", "b", "c", "x", "xx")
        return {word for word in chains if self.tier.match(self.chain(word), 9999) == 256 * len(word)}

    def errors(self) -> dict[str, int]:
        return {kind: count for kind, count in self.tier.statistics().errors.items() if count}

    def file(self, letters: str) -> Path:
        return self.path / self.chain(letters).block(256 * len(letters)).file_name


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "kv" / "tier")
    yield desk
    desk.tier.close(SOON)


@pytest.fixture
def tier(desk: Desk) -> DiskTier:
    return desk.tier


class Gate:
    """Holds each call of the disk's thread until the test lets it go on; `called` has their names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *calls: str) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.called: list[str] = []
        for call in calls:
            monkeypatch.setattr(DiskFolder, call, self._held(call, getattr(DiskFolder, call)))

    def _held(self, name: str, real: object) -> object:
        def wait(*arguments: object) -> object:
            self.called.append(name)
            self.reached.set()
            assert self.opened.wait(SOON)
            assert callable(real)
            return real(*arguments)

        return wait


@pytest.mark.parametrize(
    ("blocks", "saved", "held"),
    [
        (3, "a b c +a x", {"a", "c", "x"}),
        (4, "abc xx", {"a", "ab", "x", "xx"}),
        (4, "ab xx +ab c", {"a", "ab", "x", "c"}),
        (4, "ab xx !abc", {"a", "ab", "abc", "x"}),
        (2, "abca", {"a", "ab"}),
        (0, "a", set()),
    ],
    ids=[
        "the oldest first",
        "ends before beginnings",
        "a use is of the path",
        "so is a write",
        "no room for its end",
        "none",
    ],
)
def test_a_budget_keeps_what_was_used_last(desk: Desk, blocks: int, saved: str, held: set[str]) -> None:
    desk.open(blocks)
    for step in saved.split():
        chain = desk.chain(step.lstrip("+!"))
        match step[0]:
            case "+":
                desk.tier.touch(chain)
            case "!":  # Its last block alone.
                end = chain.tokens
                desk.tier.put_block_nowait(chain, end, content_of(chain.block(end)))
                assert desk.tier.flush(SOON)
            case _:
                desk.save(step)
    assert desk.held() == held


def test_order_of_use_survives_a_restart(desk: Desk) -> None:
    """Only the end of a path is stamped, once a minute; its beginning is as young as that. A file from the
    future is as young as the start."""
    for age, letters in enumerate(("ab", "b", "c")):
        desk.save(letters)
        os.utime(desk.file(letters), (0, 1000 - age))
    os.utime(desk.file("a"), (0, 0))
    desk.tier.touch(desk.chain("c"))
    assert desk.tier.flush(SOON)
    assert desk.file("c").stat().st_mtime == 998, "it was just written"
    desk.clock.now += 60
    desk.tier.touch(desk.chain("ab"))
    assert desk.tier.flush(SOON)
    os.utime(desk.file("b"), (0, time.time() + 1e9))
    desk.open(3)
    assert desk.held() == {"a", "ab", "b"}
    desk.save("xx")
    assert desk.held() == {"b", "x", "xx"} or desk.held() == {"a", "x", "xx"}


def test_blocks_in_subfolders_are_still_found(desk: Desk) -> None:
    """Version 0.2 had them."""
    desk.save("ab")
    desk.tier.close(SOON)
    for file in files_in(desk.path).values():
        (desk.path / file.name[:2]).mkdir(exist_ok=True)
        file.rename(desk.path / file.name[:2] / file.name)
    desk.open(3)
    assert desk.held() == {"a", "ab"}


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o700), (0o2770, 0o2700), (0o700, 0o700), (0o1777, 0o1777)]
)
def test_a_folder_of_ours_is_closed_to_others(tmp_path: Path, before: int, after: int) -> None:
    """What is kept tells what prompts said. A shared folder with a sticky bit stays as it is."""
    folder = tmp_path / "kv"
    folder.mkdir()
    folder.chmod(before)
    tier = DiskTier(folder, MODEL, PLENTY)
    put_all(tier, tier.chain(spelt("a"), ""))
    assert tier.close(SOON)
    assert stat.S_IMODE(folder.stat().st_mode) == after
    assert all(file.stat().st_mode & 0o077 == 0 for file in files_in(folder).values())


def test_a_folder_that_cannot_be_made_or_locked_is_no_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskTierUnavailable, match="cannot be used"):
        DiskFolder(tmp_path / "file" / "tier")

    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(DiskTierUnavailable, match="No locks"):
        DiskFolder(tmp_path)


# Errors.


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [("write", errno.ENOSPC, "full"), ("fsync", errno.EIO, "io"), ("open", errno.EACCES, "denied")],
)
def test_the_pause_after_a_refused_write_doubles_up_to_a_minute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: str
) -> None:
    """A success ends it. While writes are paused nothing is taken; a full disk gets the oldest back."""
    for letters in ("b", "c"):
        desk.save(letters)

    def refuse(*arguments: object, **options: object) -> object:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
            desk.save("a")
            desk.clock.now += seconds - 0.5
            assert not put_all(desk.tier, desk.chain("a")), "not tried"
            desk.clock.now += 0.5
    assert desk.errors() == {kind: 8}
    assert desk.held() == (set() if kind == "full" else {"b", "c"})
    desk.save("a")
    assert "a" in desk.held()


def test_a_file_that_cannot_be_deleted_counts_against_the_budget(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go before it. One that is damaged besides is found no more."""

    def refuse(path: Path) -> None:
        if path == desk.file("a"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        unlink(path)

    unlink = os.unlink
    desk.open(2)
    for letters in ("a", "b"):
        desk.save(letters)
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        desk.save("c")
        assert desk.errors() == {"denied": 1}
        desk.clock.now += 60
        desk.save("c")
        assert desk.held() == {"a", "c"}
        os.truncate(desk.file("a"), 5)
        assert read_all(desk.tier, desk.chain("a")) == ReadOutcome()
        desk.clock.now += 60
        desk.save("x")
    assert desk.held() == {"x"}
    assert files_in(desk.path).keys() == {desk.file(letters).name for letters in "ax"}


def test_ten_errors_of_each_kind_name_their_file_in_the_log_and_all_are_counted(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(15):
        desk.save("a")
        os.truncate(desk.file("a"), 5)
        read_all(desk.tier, desk.chain("a"))
    assert desk.errors() == {"damaged": 15}
    log = capsys.readouterr().err
    assert log.count(f"disk tier: damaged: {desk.file('a').name} is damaged") == 10
    assert log.count("only counted") == 1


def test_a_file_that_grew_is_not_read_and_a_link_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    desk.save("a")
    os.truncate(desk.file("a"), 1 << 40)
    assert read_all(desk.tier, desk.chain("a")) == ReadOutcome()
    desk.save("a")
    target = desk.file("a").rename(tmp_path / "elsewhere")
    desk.file("a").symlink_to(target)
    assert read_all(desk.tier, desk.chain("a")) == ReadOutcome()
    assert desk.errors() == {"damaged": 1, "foreign": 1}
    assert target.exists()


def test_what_cannot_be_encoded_or_read_ends_neither_the_thread_nor_a_reading(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(folder: DiskFolder, place: Place, nbytes: int) -> bytes:
        raise MemoryError

    assert desk.tier.put_block_nowait(desk.chain("a"), 256, Content({}, {"not JSON": object()}))
    assert desk.tier.flush(SOON)
    statistics = desk.tier.statistics()
    assert (statistics.errors["io"], statistics.dropped_writes, statistics.pending_bytes) == (1, 1, 0)
    desk.save("a")
    with monkeypatch.context() as patched:
        patched.setattr(DiskFolder, "read", too_large)
        assert read_all(desk.tier, desk.chain("a")) == ReadOutcome()
    assert desk.errors() == {"io": 2}
    assert len(read_all(desk.tier, desk.chain("a")).blocks) == 1, "the file has done nothing wrong"


# What hangs, and what waits.


def test_a_disk_that_hangs_does_not_hold_the_caller(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call but `flush` and `close` returns while the thread hangs in a write."""
    gate = Gate(monkeypatch, "write")
    chain = tier.chain(spelt("ab"), "")
    assert put_all(tier, chain)
    assert gate.reached.wait(SOON)
    assert (tier.match(chain, 512), tier.touch(chain)) == (0, 512)
    assert put_snapshot(tier, chain, 300)
    assert tier.has_snapshot(chain, 300)
    assert tier.deepest_snapshot(chain, 512) == 0
    assert tier.statistics().pending_bytes > 0
    assert not tier.start_read(chain, 0, 256).done()
    assert not tier.flush(0)
    gate.opened.set()
    assert tier.flush(SOON)
    assert tier.match(chain, 512) == 512


def test_a_reading_waits_for_one_write_at_most(tier: DiskTier, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its files are counted."""
    first, second = tier.chain(spelt("a"), ""), tier.chain(spelt("xx"), "")
    put_all(tier, first)
    assert tier.flush(SOON)
    gate = Gate(monkeypatch, "write", "read")
    put_all(tier, second)
    assert gate.reached.wait(SOON)
    reading = tier.start_read(first, 0, 256)
    gate.opened.set()
    assert len(reading.result(SOON).blocks) == 1
    assert tier.flush(SOON)
    assert gate.called == ["write", "read", "write"]
    assert (tier.statistics().reads, tier.statistics().read_bytes) == (1, SIZE)


def test_a_cancelled_reading_ends_before_the_next_file(
    tier: DiskTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = tier.chain(spelt("abx"), "")
    put_all(tier, chain)
    assert tier.flush(SOON)
    assert len(tier.start_read(chain, 256, 767).result(SOON).blocks) == 1, "only what is asked for"
    gate = Gate(monkeypatch, "read")
    reading = tier.start_read(chain, 0, 768)
    assert gate.reached.wait(SOON)
    assert reading.cancel()
    gate.opened.set()
    assert tier.flush(SOON)
    assert tier.statistics().reads == 2


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
    assert tier.statistics().writes == 4, "what was there is not written again"
    assert len(files_in(tmp_path)) == 4, "closing writes what was put"


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


# Files that are copied in.


def test_a_file_that_may_still_be_copied_is_left_for_the_next_look(desk: Desk) -> None:
    """`cp` writes under the file's own name: while it does, the time of modification is recent. What was
    evicted or damaged may come again."""
    desk.save("a")
    whole = desk.file("a").read_bytes()
    os.truncate(desk.file("a"), 5)
    read_all(desk.tier, desk.chain("a"))
    for part, expected in ((whole[:100], set[str]()), (whole, {"a"})):
        desk.file("a").write_bytes(part)
        if expected:
            os.utime(desk.file("a"), (LONG_AGO, LONG_AGO))
        assert not desk.tier.looks_again(), "it has just looked"
        desk.clock.now += 5
        assert desk.tier.looks_again()
        assert desk.tier.flush(SOON)
        assert desk.held() == expected


def test_nobody_waits_for_a_look_at_a_disk_that_hangs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch, "write")
    put_all(desk.tier, desk.chain("a"))
    assert gate.reached.wait(SOON)
    desk.clock.now += 5
    assert desk.tier.looks_again()
    desk.clock.now += 1
    assert not desk.tier.looks_again()
    gate.opened.set()
    assert desk.tier.flush(SOON)
