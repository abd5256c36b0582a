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
    assert desk.held() == {"c"}
    assert set(files_in(desk.path)) == {desk.file("a").name, desk.file("c").name}
    assert weight_of(files_in(desk.path).values()) <= 2 * SIZE


def test_a_use_that_cannot_be_stamped_is_counted(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.save("a")
    desk.clock.now += 60
    Refusal(monkeypatch, "utime", errno.EROFS)
    desk.touch("a")
    desk.store.tidy()
    assert desk.errors() == {"denied": 1}


class Obstacle:
    """Keeps the subfolder of block a from being used. It may come before anything is written or later."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.kind = kind
        self._shard = desk.path / f"{block('a').key[0]:02x}"
        self._aside = desk.path / "aside"
        self._patched = monkeypatch
        self._scandir = os.scandir

    def appear(self) -> None:
        if self.kind == "denied":  # Also to root, for whom modes are nothing.
            self._shard.mkdir(exist_ok=True)
            self._patched.setattr(os, "scandir", self._denied)
            return
        if self._shard.exists():
            self._shard.rename(self._aside)
        match self.kind:
            case "file":
                self._shard.write_text("not ours")
            case "pipe":
                os.mkfifo(self._shard)
            case "link in circles" | "link to nowhere":
                target = self._shard.name if self.kind == "link in circles" else "nowhere"
                self._shard.symlink_to(target)

    def go(self) -> None:
        self._patched.setattr(os, "scandir", self._scandir)
        if self.kind != "denied":
            self._shard.unlink()
            if self._aside.exists():
                self._aside.rename(self._shard)

    def _denied(self, path: str) -> object:
        if str(path) == str(self._shard):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return self._scandir(path)


OBSTACLES = {
    "file": "foreign",
    "pipe": "foreign",
    "link in circles": "foreign",
    "link to nowhere": "missing",
    "denied": "denied",
}
"""How each is counted."""


@pytest.fixture(params=OBSTACLES)
def obstacle(desk: Desk, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Obstacle:
    shards = {block(letters).key[0] for letters in ("a", "ab", "b", "ba")}
    assert len(shards) == 4, "each in a subfolder of its own"
    return Obstacle(desk, monkeypatch, request.param)


def test_a_subfolder_that_cannot_be_used_takes_nothing_else_away(desk: Desk, obstacle: Obstacle) -> None:
    """At the start: the others are written and read, and no write is held up by it."""
    obstacle.appear()
    desk.open()
    assert desk.save("ba") == [True, True]
    assert desk.save("ab") == [False, False]
    assert not desk.paused()
    assert desk.held() == {"b", "ba"}
    assert desk.store.load(block("ba")) == content_of(block("ba"))
    desk.open()
    assert desk.held() == {"b", "ba"}
    assert desk.errors() == {OBSTACLES[obstacle.kind]: 1}


def test_a_subfolder_that_can_be_used_again_has_lost_nothing(desk: Desk, obstacle: Obstacle) -> None:
    """Nor has any other what depends on it. It is reported once, however often a running tier looks."""
    desk.save("ab")
    desk.close()
    obstacle.appear()
    desk.open()
    for _ in range(3):
        desk.store.look_again()
    assert desk.held() == set()
    assert desk.errors() == {OBSTACLES[obstacle.kind]: 1}
    obstacle.go()
    for shard in desk.path.glob("??"):
        for path in (*shard.iterdir(), shard):
            os.utime(path, (1e9, 1e9))
    desk.store.look_again()
    assert desk.held() == {"a", "ab"}
    assert desk.save("ax") == [True, True]
    assert desk.errors() == {OBSTACLES[obstacle.kind]: 1}


def test_a_running_tier_finds_what_is_copied_in_beside_a_subfolder_that_it_cannot_use(
    desk: Desk, obstacle: Obstacle, tmp_path_factory: pytest.TempPathFactory
) -> None:
    obstacle.appear()
    desk.store.look_again()
    source = Desk(tmp_path_factory.mktemp("source"))
    source.save("ba")
    for name, file in files_in(source.path).items():
        os.utime(file, (1e9, 1e9))
        (desk.path / file.parent.name).mkdir(exist_ok=True)
        file.rename(desk.path / file.parent.name / name)
    source.close()
    desk.store.look_again()
    assert desk.held() == {"b", "ba"}
    assert desk.errors() == {OBSTACLES[obstacle.kind]: 1}


def test_a_subfolder_that_a_file_replaces_while_it_is_in_use_is_a_miss(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are gone: nothing is left to be deleted or stamped."""
    desk.save("ab")
    desk.save("b")
    Obstacle(desk, monkeypatch, "file").appear()
    desk.clock.now += 60
    desk.touch("a")
    desk.store.tidy()
    assert desk.store.load(block("a")) is None
    desk.store.tidy()
    assert desk.errors() == {"foreign": 1}
    assert not desk.paused()
    assert desk.held() == {"b"}


def test_a_file_that_a_scan_cannot_delete_is_counted_and_the_others_are_found(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("ab")
    desk.file("a").with_name(f".{block('a').file_name}.partial").touch()
    refusal = Refusal(monkeypatch, "unlink", errno.EACCES)
    desk.open()
    refusal.on = False
    assert desk.errors() == {"denied": 1}
    assert desk.held() == {"a", "ab"}


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
        desk.store.save([block("b")], Content({}, {"a function": odd}))
    assert desk.held() == {"a"}


def test_a_file_shorter_than_its_size_says_is_truncated(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is being cut while it is read."""
    desk.save("a")
    assert desk.folder is not None
    monkeypatch.setattr(os, "read", lambda file, size: b"")
    raw = desk.folder.read(block("a"), desk.file("a").stat().st_size)
    with pytest.raises(Damage, match="truncated"):
        decode(raw, block("a"), MODEL)
