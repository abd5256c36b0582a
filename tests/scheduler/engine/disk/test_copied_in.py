"""Files that an operator copies into the folder of a running tier, whole or in part, in any order."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.disk.disk_tier import DiskTier
from tests.examples import examples
from tests.scheduler.engine.disk.desk import SIZE, Clock, Desk, block, chain_of
from tests.scheduler.engine.disk.disk_contents import (
    LONG_AGO,
    MODEL,
    PLENTY,
    SOON,
    content_of,
    files_in,
    put_all,
    read_all,
    spelt,
    weight_of,
)
from tests.scheduler.engine.disk.gate import Gate

_PATHS = ("abc", "abx", "x")
_NAMES = ("a", "ab", "abc", "abx", "x")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with five blocks."""
    path = tmp_path_factory.mktemp("source")
    desk = Desk(path)
    for letters in _PATHS:
        desk.save(letters)
    desk.close()
    return path


def copy(source: Path, target: Path, letters: Iterable[str]) -> None:
    """As `rsync -a` does: each file appears whole, with the time of the original."""
    for name in letters:
        original = files_in(source)[block(name).file_name]
        shard = target / original.parent.name
        shard.mkdir(exist_ok=True)
        shutil.copyfile(original, shard / ".copied")
        os.utime(shard / ".copied", (LONG_AGO, LONG_AGO))
        (shard / ".copied").rename(shard / original.name)


def test_what_is_copied_in_is_found_and_read(desk: Desk, source: Path) -> None:
    desk.save("xx")
    copy(source, desk.path, _NAMES)
    assert desk.held() == {"x", "xx"}
    desk.store.look_again()
    assert desk.held() == {"a", "ab", "abc", "abx", "x", "xx"}
    for name in _NAMES:
        assert desk.store.load(block(name)) == content_of(block(name))


@settings(max_examples=examples(50))
@given(order=st.permutations(_NAMES), looks=st.sets(st.integers(0, 4)), own=st.sampled_from(["", "a", "ab"]))
def test_the_order_of_copying_does_not_matter(
    source: Path, order: list[str], looks: set[int], own: str
) -> None:
    """A block that comes before those below it waits for them, also if the tier writes them itself."""
    with ExitStack() as stack:
        path = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(pytest.MonkeyPatch.context()).setattr(os, "fsync", lambda file: None)
        desk = Desk(Path(path))
        for number, name in enumerate(order):
            copy(source, desk.path, [name])
            if number in looks:
                desk.store.look_again()
        desk.save(own)
        desk.store.look_again()
        assert desk.held() == set(_NAMES)
        assert desk.store.statistics().nbytes == weight_of(files_in(desk.path).values())
        desk.close()


def test_a_part_is_of_use_up_to_the_first_block_that_is_missing(desk: Desk, source: Path) -> None:
    copy(source, desk.path, ("a", "abc", "x"))
    desk.store.look_again()
    assert desk.held() == {"a", "x"}
    assert desk.store.match(chain_of("abc"), 768) == 256
    copy(source, desk.path, ["ab"])
    desk.store.look_again()
    assert desk.held() == {"a", "ab", "abc", "x"}


def test_more_than_the_budget_is_evicted_and_what_was_copied_in_counts_as_used_now(
    desk: Desk, source: Path
) -> None:
    desk.open(budget=3 * SIZE)
    desk.save("c")
    copy(source, desk.path, _NAMES)
    desk.store.look_again()
    assert weight_of(files_in(desk.path).values()) == 3 * SIZE
    assert desk.held() == {"a", "ab", "x"}, "ends go before beginnings"


def test_a_file_that_may_still_be_copied_is_left_for_the_next_look(desk: Desk, source: Path) -> None:
    """`cp` writes under the file's own name: while it does, the time of modification is recent."""
    copy(source, desk.path, ["a"])
    file = desk.file("a")
    whole = file.read_bytes()
    file.write_bytes(whole[:100])
    desk.store.look_again()
    assert desk.held() == set()
    file.write_bytes(whole)
    os.utime(file, (LONG_AGO, LONG_AGO))
    desk.store.look_again()
    assert desk.held() == {"a"}
    assert desk.errors() == {}


@pytest.mark.parametrize("damage", ["half", "flipped"])
def test_a_damaged_or_half_copied_block_is_a_miss_that_the_log_names(
    desk: Desk, source: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy(source, desk.path, _NAMES)
    file = desk.file("ab")
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole[: len(whole) // 2] if damage == "half" else whole)
    os.utime(file, (LONG_AGO, LONG_AGO))
    desk.store.look_again()
    assert desk.store.load(block("ab")) is None
    assert f"{block('ab').file_name} is damaged" in capsys.readouterr().err
    desk.store.tidy()
    desk.store.look_again()
    assert desk.held() == {"a", "x"}


def test_only_subfolders_that_changed_are_listed(
    desk: Desk, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("a")
    for shard in desk.path.glob("??"):
        os.utime(shard, (LONG_AGO, LONG_AGO))
    desk.store.look_again()
    listed: list[str] = []
    scandir = os.scandir

    def noted(path: str) -> object:
        if str(path).startswith(str(desk.path)):
            listed.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", noted)
    desk.store.look_again()
    assert listed == []
    copy(source, desk.path, ["ab"])
    desk.store.look_again()
    assert listed == [str(desk.path / f"{block('ab').key[0]:02x}")]
    assert desk.held() == {"a", "ab"}


def _tier(path: Path, clock: Clock) -> DiskTier:
    return DiskTier(path, MODEL, PLENTY, clock=clock)


def test_a_running_tier_finds_what_another_one_writes_while_both_run(tmp_path: Path) -> None:
    clock = Clock()
    first, second = _tier(tmp_path / "first", clock), _tier(tmp_path / "second", clock)
    chain = first.chain(spelt("abc"), "")
    put_all(first, chain)
    assert first.flush(SOON)
    assert not second.looks_again(), "it has just looked"
    copy(tmp_path / "first", tmp_path / "second", ("a", "ab", "abc"))
    clock.now += 5
    assert second.looks_again()
    assert second.flush(SOON)
    assert second.match(chain, 768) == 768
    assert read_all(second, chain) == read_all(first, chain)
    assert not second.looks_again(), "a miss within five seconds searches nothing"
    for tier in (first, second):
        assert tier.close(SOON)


def test_nobody_waits_for_a_look_at_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tier = _tier(tmp_path, clock)
    gate = Gate(monkeypatch, "write")
    put_all(tier, tier.chain(spelt("a"), ""))
    assert gate.reached.wait(SOON)
    clock.now += 5
    assert tier.looks_again()
    clock.now += 1
    assert not tier.looks_again()
    gate.opened.set()
    assert tier.close(SOON)


def test_a_folder_that_cannot_be_listed_is_an_error_that_is_counted(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.save("a")

    def denied(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", denied)
        desk.store.look_again()
    assert desk.errors() == {"denied": 1}
    assert desk.held() == {"a"}
