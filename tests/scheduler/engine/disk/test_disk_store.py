"""The disk tier's files: the budget holds, and order survives a restart."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from scheduler.engine.disk.block_chain import FORMAT_VERSION, Chain, Place
from scheduler.engine.disk.disk_folder import DiskFolder
from scheduler.engine.disk.disk_index import DiskIndex, FoundFile
from scheduler.engine.disk.disk_store import DiskStore
from tests.scheduler.engine.disk.desk import SIZE, Desk, block, chain_of
from tests.scheduler.engine.disk.disk_contents import MODEL, PLENTY, content_of, files_in, spelt, weight_of

# The budget.


def test_what_was_used_longest_ago_goes_first(desk: Desk) -> None:
    desk.open(budget=3 * SIZE)
    for letters in ("a", "b", "c"):
        desk.save(letters)
    desk.touch("a")
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
    desk.touch("ab")
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
    assert not desk.store.save([block("b")], large)
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


def test_a_block_without_the_one_before_is_not_written(desk: Desk) -> None:
    assert not desk.store.save([block("a"), block("ab")], content_of(block("ab")))
    assert not files_in(desk.path)


# A restart.


def test_a_restart_finds_everything(desk: Desk) -> None:
    desk.save("abc")
    chain = chain_of("ab", 9)
    snapshot = chain.snapshot(521)
    desk.store.save(chain.path(snapshot), content_of(snapshot))
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
    desk.touch("ab")
    desk.store.tidy()
    desk.open(budget=2 * SIZE)
    assert desk.held() == {"a", "ab"}


def test_a_use_is_stamped_once_a_minute(desk: Desk) -> None:
    desk.save("a")
    desk.touch("a")
    assert not desk.store.untidy, "it was just written"
    desk.clock.now += 60
    desk.touch("a")
    desk.touch("a")
    os.utime(desk.file("a"), (0, 0))
    desk.store.tidy()
    assert desk.file("a").stat().st_mtime > 0
    os.utime(desk.file("a"), (0, 0))
    desk.touch("a")
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


def test_partial_files_and_other_versions_go_at_the_start(desk: Desk) -> None:
    desk.save("a")
    desk.save("x")
    kept = desk.file("x")
    kept.with_name(f".{kept.name}.partial").write_bytes(b"half")
    kept.with_name(kept.name.replace(f"kv{FORMAT_VERSION}", f"kv{FORMAT_VERSION + 1}")).write_bytes(b"new")
    desk.open()
    assert desk.held() == {"a", "x"}
    assert set(files_in(desk.path)) == {desk.file("a").name, kept.name}
    assert desk.errors() == {"foreign": 1}


def test_a_block_without_those_before_is_not_found_and_ages_out(desk: Desk) -> None:
    for letters in ("abc", "x"):
        desk.save(letters)
    desk.file("ab").unlink()
    desk.open(budget=4 * SIZE)
    assert desk.held() == {"a", "x"}
    assert desk.store.statistics().files == 3
    desk.touch("a")
    desk.touch("x")
    desk.save("bb")
    assert desk.held() == {"a", "x", "b", "bb"}


def test_a_gap_that_is_filled_brings_back_what_comes_after(desk: Desk) -> None:
    desk.save("abc")
    desk.file("ab").unlink()
    desk.open()
    assert desk.save("ab") == [True, True]
    assert desk.matched("abc") == 3


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


@pytest.mark.slow
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


def test_names_that_no_chain_has_are_counted_and_found_by_nobody() -> None:
    """In a circle, or twice with one key: it takes a hand that renames."""
    real = block("a")
    circle = [Place(real.key, block("ab").key, "b", 512), Place(block("ab").key, real.key, "b", 256)]
    index = DiskIndex()
    index.restore([FoundFile(place, 1, 0.0) for place in (*circle, real._replace(predecessor=bytes(20)))])
    assert (len(index), index.nbytes, index.match(chain_of("ab"), 512)) == (3, 3, 0)
    index.restore([FoundFile(real, 1, 0.0)])
    assert (len(index), index.match(chain_of("ab"), 512)) == (4, 256)


@pytest.mark.parametrize(
    ("before", "after"), [(0o755, 0o700), (0o2770, 0o2700), (0o700, 0o700), (0o1777, 0o1777)]
)
def test_a_folder_of_ours_is_closed_to_others(tmp_path: Path, before: int, after: int) -> None:
    """What is kept tells what prompts said. A shared folder with a sticky bit stays as it is."""
    folder = tmp_path / "kv"
    folder.mkdir()
    folder.chmod(before)
    DiskFolder(folder).release()
    assert stat.S_IMODE(folder.stat().st_mode) == after
