"""A damaged file is a counted miss, for any damage at any time."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import Place
from scheduler.engine.disk.disk_folder import DiskFolder
from tests.scheduler.engine.disk.desk import SIZE, Desk, block
from tests.scheduler.engine.disk.disk_contents import content_of, files_in

REGIONS = {
    "the header's length": range(0, 8),
    "the opening of the header": range(8, 60),
    "the checksum": range(62, 126),
    "the rest of the header": range(126, 700),
    "the arrays": range(700, 10_000),
}


@pytest.mark.parametrize("region", REGIONS)
def test_a_changed_byte_anywhere_is_a_counted_miss_and_the_file_goes(desk: Desk, region: str) -> None:
    desk.save("a")
    whole = desk.file("a").read_bytes()
    wanted = [at for at in REGIONS[region] if at < len(whole)]
    assert wanted, "a region without a byte"
    for count, at in enumerate(wanted[:: max(1, len(wanted) // 12)], start=1):
        desk.file("a").write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        assert desk.store.load(block("a")) is None
        assert sum(desk.errors().values()) == count
        assert not desk.held()
        desk.store.tidy()
        assert not files_in(desk.path)
        assert desk.save("a") == [True], "what was lost can be written again"
    assert desk.store.load(block("a")) == content_of(block("a"))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100, 126, 300, -30, -1])
def test_a_truncated_file_is_a_counted_miss(desk: Desk, length: int, restarted: bool) -> None:
    desk.save("a")
    file = desk.file("a")
    os.truncate(file, length % file.stat().st_size)
    if restarted:
        desk.open()
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {"truncated": 1}
    desk.store.tidy()
    assert not file.exists()


def test_a_file_that_grew_is_not_read_to_find_out_how_far(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("a")
    os.truncate(desk.file("a"), 1 << 40)

    def read(file: int, size: int) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr(os, "read", read)
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {"checksum": 1}


def test_a_vanished_file_is_a_counted_miss(desk: Desk) -> None:
    desk.save("a")
    desk.file("a").unlink()
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {"missing": 1}
    desk.store.tidy()
    assert desk.store.statistics().files == 0


def test_the_folder_may_vanish_and_comes_back(desk: Desk) -> None:
    desk.save("a")
    desk.file("a").unlink()
    for shard in desk.path.glob("??"):
        shard.rmdir()
    assert desk.store.load(block("a")) is None
    assert desk.save("a") == [True]


def test_another_models_file_under_our_name_is_foreign(desk: Desk) -> None:
    """The names of a chain depend on the model, so it takes a hand that renames."""
    desk.save("ab")
    desk.file("a").write_bytes(desk.file("ab").read_bytes())
    desk.open()
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {"foreign": 1}


def test_a_file_that_cannot_be_opened_is_a_counted_miss(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.save("a")

    def broken(file: int, size: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", broken)
        assert desk.store.load(block("a")) is None
    assert desk.errors() == {"io": 1}


def test_a_symbolic_link_is_not_followed(desk: Desk, tmp_path: Path) -> None:
    desk.save("a")
    target = desk.file("a").rename(tmp_path / "elsewhere")
    (desk.path / f"{block('a').key[0]:02x}" / block("a").file_name).symlink_to(target)
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {"foreign": 1}
    desk.store.tidy()
    assert target.exists()


def test_what_comes_after_a_damaged_file_is_of_use_again_when_that_is_written_again(desk: Desk) -> None:
    for letters in ("abc", "abx", "x"):
        desk.save(letters)
    os.truncate(desk.file("ab"), 5)
    assert desk.store.load(block("ab")) is None
    assert [desk.matched(letters) for letters in ("abc", "abx", "x")] == [1, 1, 1]
    assert desk.save("ab") == [True, True]
    assert [desk.matched(letters) for letters in ("abc", "abx", "x")] == [3, 3, 1]


def test_ten_errors_of_each_kind_name_their_file_in_the_log_and_all_are_counted(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(15):
        desk.save("a")
        os.truncate(desk.file("a"), 5)
        desk.store.load(block("a"))
    assert desk.errors() == {"truncated": 15}
    log = capsys.readouterr().err
    assert log.count(f"disk tier: truncated: {block('a').file_name} is damaged") == 10
    assert log.count("only counted") == 1


# Two threads.


def test_a_file_that_is_evicted_while_it_is_opened_is_no_error(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("a")
    desk.open(budget=SIZE)

    def evict_first(folder: DiskFolder, place: Place, nbytes: int) -> bytes:
        monkeypatch.undo()
        assert desk.save("b") == [True]
        return folder.read(place, nbytes)

    monkeypatch.setattr(DiskFolder, "read", evict_first)
    assert desk.store.load(block("a")) is None
    assert desk.errors() == {}


def test_a_damaged_file_is_gone_before_its_name_is_written_again(desk: Desk) -> None:
    desk.save("a")
    os.truncate(desk.file("a"), 5)
    desk.store.load(block("a"))
    assert desk.save("a") == [True]
    desk.store.tidy()
    assert desk.store.load(block("a")) == content_of(block("a"))
