"""The disk tier's files: damaged ones are counted misses, the budget holds, and order survives a restart."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import FORMAT_VERSION, Chain, Place
from scheduler.engine.disk.block_file import Content, Damage, decode, encode
from scheduler.engine.disk.disk_folder import DiskFolder, DiskTierUnavailable
from scheduler.engine.disk.disk_index import DiskIndex, Entry, FoundFile
from scheduler.engine.disk.disk_store import DiskStore
from tests.scheduler.engine.disk.disk_contents import MODEL, content_of, files_in, spelt, weight_of

PLENTY = 10**9


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A folder and the store on it, which can be closed and opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.folder: DiskFolder | None = None
        self.store = self.open()

    def open(self, budget: int = PLENTY, fingerprint: str = MODEL) -> DiskStore:
        self.close()
        self.folder = DiskFolder(self.path)
        self.store = DiskStore(self.folder, fingerprint, budget, self.clock)
        return self.store

    def close(self) -> None:
        if self.folder is not None:
            self.folder.release()
            self.folder = None

    def save(self, letters: str) -> list[bool]:
        """Every block of the chain."""
        chain = chain_of(letters)
        places = [chain.block(256 * count) for count in range(1, len(letters) + 1)]
        return [self.store.holds(place.key) or self.store.save(place, content_of(place)) for place in places]

    def held(self) -> set[str]:
        """Every block that is there, as the letters of its chain."""
        chains = {"".join(letters) for n in range(1, 5) for letters in _words("abcx", n)}
        return {letters for letters in chains if self.store.holds(chain_of(letters).key(len(letters)))}

    def paused(self) -> bool:
        return self.store.paused

    def errors(self) -> dict[str, int]:
        counted = self.store.statistics().errors.items()
        return {kind: count for kind, count in counted if count}

    def file(self, letters: str) -> Path:
        return files_in(self.path)[block(letters).file_name]


def _words(alphabet: str, length: int) -> list[str]:
    return (
        [""] if length == 0 else [head + tail for head in alphabet for tail in _words(alphabet, length - 1)]
    )


def chain_of(letters: str, more: int = 0) -> Chain:
    return Chain(MODEL, "", spelt(letters, more))


def block(letters: str) -> Place:
    return chain_of(letters).block(256 * len(letters))


SIZE = sum(len(part) for part in encode(content_of(block("a")), block("a"), MODEL))
"""Of every file that these tests write, up to three blocks."""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path / "kv" / "tier")
    yield desk
    assert desk.store.check_integrity() == []
    desk.close()


# What a damaged file costs.

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
    assert desk.errors() == {"io": 1}
    desk.store.tidy()
    assert target.exists()


def test_what_stood_on_a_damaged_file_goes_with_it(desk: Desk) -> None:
    for letters in ("abc", "abx", "x"):
        desk.save(letters)
    os.truncate(desk.file("ab"), 5)
    assert desk.store.load(block("ab")) is None
    assert desk.held() == {"a", "x"}
    desk.store.tidy()
    assert len(files_in(desk.path)) == 2


def test_each_kind_of_error_is_told_once_and_counted_always(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        desk.save("a")
        os.truncate(desk.file("a"), 5)
        desk.store.load(block("a"))
    assert desk.errors() == {"truncated": 3}
    assert capsys.readouterr().err.count("disk tier: truncated") == 1


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


def test_a_block_whose_parent_is_found_damaged_meanwhile_is_not_kept(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("a")

    def write_after_the_loss(folder: DiskFolder, place: Place, parts: list[bytes]) -> None:
        monkeypatch.undo()
        os.truncate(desk.file("a"), 5)
        assert desk.store.load(block("a")) is None
        folder.write(place, parts)

    monkeypatch.setattr(DiskFolder, "write", write_after_the_loss)
    assert desk.save("ab") == [True, False]
    assert desk.held() == set()
    desk.store.tidy()
    assert not files_in(desk.path)


def test_a_file_that_is_doomed_is_gone_before_its_name_is_written_again(desk: Desk) -> None:
    desk.save("a")
    os.truncate(desk.file("a"), 5)
    desk.store.load(block("a"))
    assert desk.save("a") == [True]
    desk.store.tidy()
    assert desk.store.load(block("a")) == content_of(block("a"))


# The budget.


def test_what_was_used_longest_ago_goes_first(desk: Desk) -> None:
    desk.open(budget=3 * SIZE)
    for letters in ("a", "b", "c"):
        desk.save(letters)
    desk.store.touch(block("a").key)
    desk.save("x")
    assert desk.held() == {"a", "c", "x"}
    assert desk.store.statistics().evicted_files == 1


def test_the_end_of_a_path_goes_before_its_beginning(desk: Desk) -> None:
    desk.open(budget=4 * SIZE)
    desk.save("abc")
    desk.save("xx")
    assert desk.held() == {"a", "ab", "x", "xx"}


def test_a_path_in_use_keeps_all_that_it_stands_on(desk: Desk) -> None:
    desk.open(budget=4 * SIZE)
    desk.save("ab")
    desk.save("xx")
    desk.store.touch(block("ab").key)
    desk.save("c")
    assert desk.held() == {"a", "ab", "x", "c"}


def test_where_a_path_does_not_fit_its_beginning_is_kept(desk: Desk) -> None:
    desk.open(budget=2 * SIZE)
    assert desk.save("abca") == [True, True, False, False]
    assert desk.held() == {"a", "ab"}


def test_what_cannot_fit_evicts_nothing(desk: Desk) -> None:
    desk.open(budget=2 * SIZE)
    desk.save("a")
    large = content_of(block("b"), rows=1000)
    assert not desk.store.save(block("b"), large)
    assert desk.held() == {"a"}


def test_a_smaller_budget_holds_from_the_start(desk: Desk) -> None:
    desk.save("abc")
    desk.open(budget=2 * SIZE)
    assert desk.held() == {"a", "ab"}
    assert weight_of(files_in(desk.path).values()) <= 2 * SIZE


def test_no_budget_keeps_nothing(desk: Desk) -> None:
    desk.open(budget=0)
    assert desk.save("a") == [False]
    assert not files_in(desk.path)


def test_a_block_without_its_parent_is_not_written(desk: Desk) -> None:
    assert not desk.store.save(block("ab"), content_of(block("ab")))
    assert not files_in(desk.path)


# A restart.


def test_a_restart_finds_everything(desk: Desk) -> None:
    desk.save("abc")
    snapshot = chain_of("ab", 9).snapshot(521, alone=False)
    desk.store.save(snapshot, content_of(snapshot))
    before = desk.store.statistics()
    desk.open()
    assert desk.held() == {"a", "ab", "abc"}
    assert desk.store.load(snapshot) == content_of(snapshot)
    after = desk.store.statistics()
    assert (after.files, after.nbytes) == (before.files, before.nbytes)


def test_order_of_use_survives_a_restart(desk: Desk) -> None:
    """Only the end of a path is stamped; its beginning is as young as that."""
    for age, letters in enumerate(("a", "ab", "b", "c")):
        desk.save(letters)
        os.utime(desk.file(letters), (0, 1000 - age))
    desk.clock.now += 60
    desk.store.touch(block("ab").key)
    desk.store.tidy()
    desk.open(budget=2 * SIZE)
    assert desk.held() == {"a", "ab"}


def test_a_use_is_stamped_once_a_minute(desk: Desk) -> None:
    desk.save("a")
    desk.store.touch(block("a").key)
    assert not desk.store.untidy, "it was just written"
    desk.clock.now += 60
    desk.store.touch(block("a").key)
    desk.store.touch(block("a").key)
    os.utime(desk.file("a"), (0, 0))
    desk.store.tidy()
    assert desk.file("a").stat().st_mtime > 0
    os.utime(desk.file("a"), (0, 0))
    desk.store.touch(block("a").key)
    desk.store.tidy()
    assert desk.file("a").stat().st_mtime == 0


def test_a_file_from_the_future_is_as_young_as_the_scan(desk: Desk) -> None:
    desk.save("a")
    desk.save("b")
    os.utime(desk.file("a"), (0, time.time() + 1e9))
    desk.open(budget=2 * SIZE)
    desk.save("c")
    desk.save("x")
    assert desk.held() == {"c", "x"}


def test_orphans_partial_files_and_other_versions_go_at_the_start(desk: Desk) -> None:
    desk.save("abc")
    desk.save("x")
    desk.file("ab").unlink()
    kept = desk.file("x")
    kept.with_name(f".{kept.name}.partial").write_bytes(b"half")
    kept.with_name(kept.name.replace(f"kv{FORMAT_VERSION}", f"kv{FORMAT_VERSION + 1}")).write_bytes(b"new")
    desk.open()
    assert desk.held() == {"a", "x"}
    assert set(files_in(desk.path)) == {desk.file("a").name, kept.name}
    assert desk.errors() == {"foreign": 1}
    assert desk.store.statistics().evicted_files == 1


def test_what_is_not_ours_stays(desk: Desk) -> None:
    desk.save("a")
    others = [desk.path / "README", desk.file("a").with_name("x.partial"), desk.file("a").with_name("photo")]
    for other in others:
        other.write_text("mine")
    (desk.file("a").parent / "folder").mkdir()
    desk.open(budget=0)
    assert all(other.exists() for other in others)
    assert desk.held() == set()


def test_another_models_files_stay_until_room_is_needed(desk: Desk) -> None:
    desk.save("ab")
    desk.open(fingerprint="0" * 64)
    assert desk.store.match(Chain("0" * 64, "", spelt("ab")), 512) == 0
    assert desk.store.statistics().files == 2
    desk.open()
    assert desk.held() == {"a", "ab"}


def test_ten_thousand_files_are_found_again(tmp_path: Path) -> None:
    """By name alone: these are empty."""
    chain = Chain(MODEL, "", list(range(100 * 256)))
    for salt in range(100):
        chain = Chain(MODEL, f"{salt}", list(range(100 * 256)))
        for count in range(1, 101):
            place = chain.block(256 * count)
            shard = tmp_path / f"{place.key[0]:02x}"
            shard.mkdir(exist_ok=True)
            (shard / place.file_name).touch()
    folder = DiskFolder(tmp_path)
    store = DiskStore(folder, MODEL, PLENTY)
    assert store.match(chain, chain.tokens) == chain.tokens
    assert store.statistics().files == 10_000
    folder.release()


def test_names_that_form_a_circle_are_orphans() -> None:
    keys = [bytes([n]) * 20 for n in range(2)]
    circle = [Place(keys[0], keys[1], "b", 512), Place(keys[1], keys[0], "b", 512)]
    index = DiskIndex()
    assert len(index.restore([FoundFile(place, 1, 0.0) for place in circle])) == 2
    assert (len(index), index.check_integrity()) == (0, [])


def test_of_two_files_with_one_key_one_is_an_orphan() -> None:
    keys = [bytes([n]) * 20 for n in range(2)]
    twice = [Place(keys[0], keys[1], "b", 256), Place(keys[0], keys[0], "b", 256)]
    index = DiskIndex()
    assert len(index.restore([FoundFile(place, 1, 0.0) for place in twice])) == 1
    assert (len(index), index.check_integrity()) == (1, [])


def test_the_alarm_names_what_is_wrong() -> None:
    index = DiskIndex()
    index.restore([FoundFile(place, 1, 0.0) for place in (block("a"), block("ab"))])
    index.nbytes += 1
    index._entries.move_to_end(block("ab").key)
    index._hold(Entry(block("bc"), 5))
    index._children.clear()
    assert len(index.check_integrity()) == 4


# The disk refuses.


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
