"""A failing disk: files that cannot be written, deleted, locked or listed are counted, and nothing is
left."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.engine.disk.block_file import Content, Damage, decode
from scheduler.engine.disk.disk_folder import DiskFolder, DiskTierUnavailable
from tests.scheduler.engine.disk.desk import SIZE, Desk, block
from tests.scheduler.engine.disk.disk_contents import MODEL, content_of, files_in, weight_of


class Refusal:
    """Makes one call of `os` raise, as long as it is on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
        self.on = True
        real = getattr(os, call)

        def refuse(*arguments: object, **options: object) -> object:
            if self.on:
                raise OSError(number, os.strerror(number))
            return real(*arguments, **options)

        monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize(
    ("call", "number", "kind"),
    [
        ("write", errno.ENOSPC, "full"),
        ("write", errno.EDQUOT, "full"),
        ("fsync", errno.EIO, "io"),
        ("open", errno.EACCES, "denied"),
        ("replace", errno.EROFS, "denied"),
    ],
)
def test_a_write_that_the_disk_refuses_is_counted_and_leaves_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: str
) -> None:
    refusal = Refusal(monkeypatch, call, number)
    assert desk.save("a") == [False]
    assert desk.errors() == {kind: 1}
    refusal.on = False
    assert not files_in(desk.path)
    assert desk.paused()
    desk.clock.now += 1
    assert not desk.paused()
    assert desk.save("a") == [True]


def test_the_pause_doubles_up_to_a_minute_and_ends_with_a_success(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = Refusal(monkeypatch, "fsync", errno.EIO)
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        assert desk.save("a") == [False]
        desk.clock.now += seconds - 0.5
        assert desk.paused()
        assert desk.save("a") == [False], "not tried"
        desk.clock.now += 0.5
    assert desk.errors() == {"io": 8}
    refusal.on = False
    assert desk.save("a") == [True]
    refusal.on = True
    desk.save("b")
    desk.clock.now += 1
    assert not desk.paused()


def test_a_disk_that_others_filled_is_given_back_the_oldest(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget larger than the disk would otherwise freeze the tier as it is."""
    for letters in ("a", "b", "c"):
        desk.save(letters)
    Refusal(monkeypatch, "write", errno.ENOSPC)
    assert desk.save("x") == [False]
    assert desk.held() == {"b", "c"}


def test_a_file_that_cannot_be_deleted_counts_against_the_budget(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.open(budget=2 * SIZE)
    desk.save("a")
    desk.save("b")
    refusal = Refusal(monkeypatch, "unlink", errno.EACCES)
    assert desk.save("c") == [False]
    assert desk.errors() == {"denied": 1}
    refusal.on = False
    desk.clock.now += 60
    assert desk.save("c") == [True]
    assert desk.held() == {"c"}, "a is still on the disk"
    assert weight_of(files_in(desk.path).values()) <= 2 * SIZE


def test_a_use_that_cannot_be_stamped_is_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.save("a")
    desk.clock.now += 60
    Refusal(monkeypatch, "utime", errno.EROFS)
    desk.store.touch(block("a").key)
    desk.store.tidy()
    assert desk.errors() == {"denied": 1}


@pytest.mark.parametrize("call", ["scandir", "unlink"])
def test_a_folder_that_cannot_be_scanned_is_no_tier(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    desk.save("a")
    desk.file("a").with_name(f".{block('a').file_name}.partial").touch()
    refusal = Refusal(monkeypatch, call, errno.EACCES)
    with pytest.raises(DiskTierUnavailable, match="Permission denied"):
        desk.open()
    refusal.on = False


def test_a_folder_that_cannot_be_made_is_no_tier(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskTierUnavailable, match="cannot be used"):
        DiskFolder(tmp_path / "file" / "tier")


def test_a_file_system_without_locks_is_no_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(DiskTierUnavailable, match="No locks"):
        DiskFolder(tmp_path)


def test_nobody_else_may_read_what_prompts_said(desk: Desk) -> None:
    desk.save("a")
    for path in (desk.path, desk.file("a").parent, desk.file("a")):
        assert path.stat().st_mode & 0o077 == 0


def test_a_large_file_may_come_in_pieces(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reads and writes at most 2 GiB in one call."""
    real_read, real_write = os.read, os.write

    def read(file: int, size: int) -> bytes:
        return real_read(file, min(size, 100))

    def write(file: int, data: memoryview) -> int:
        return real_write(file, data[:100])

    with monkeypatch.context() as patched:
        patched.setattr(os, "read", read)
        patched.setattr(os, "write", write)
        desk.save("a")
        loaded = desk.store.load(block("a"))
    assert loaded == content_of(block("a"))


def test_content_that_cannot_be_encoded_raises_before_anything_is_evicted(desk: Desk) -> None:
    desk.open(budget=SIZE)
    desk.save("a")
    odd: Callable[[], None] = lambda: None  # noqa: E731
    with pytest.raises(TypeError):
        desk.store.save(block("b"), Content({}, {"a function": odd}))
    assert desk.held() == {"a"}


def test_a_file_shorter_than_its_size_says_is_truncated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being cut while it is read."""
    desk.save("a")
    assert desk.folder is not None
    monkeypatch.setattr(os, "read", lambda file, size: b"")
    raw = desk.folder.read(block("a"), desk.file("a").stat().st_size)
    with pytest.raises(Damage, match="truncated"):
        decode(raw, block("a"), MODEL)
