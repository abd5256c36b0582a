"""The cycle collector is off during large work and a moment after it, never for long; then freed memory
returns to the system, and not after each."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from api.bodies import large_work
from api.bodies.large_work import MOST_SECONDS, LargeWork


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


class Held(LargeWork):
    """It returns memory only when a test calls `_return`."""

    now = 0.0

    def __init__(self) -> None:
        super().__init__(lambda: None, lambda: None, lambda: self.now)

    def return_soon(self) -> None: ...


def test_the_collector_is_off_from_the_first_work_to_the_return_after_the_last() -> None:
    work = Held()
    work.begin()
    work.end()
    assert not gc.isenabled(), "what the work made is not decoded yet"
    work.begin()
    work._return()
    assert not gc.isenabled(), "the next work goes on"
    work.end()
    work._return()
    assert gc.isenabled()


def test_work_without_end_does_not_keep_it_off() -> None:
    """What was made meanwhile is visited by no partial collection."""
    work = Held()
    for _ in range(2):
        work.begin()
        work.end()
        work.now += MOST_SECONDS + 1
        assert not gc.isenabled()
        made = [[] for _ in range(10_000)]  # type: ignore[var-annotated]
        work.begin()
        work.end()
        assert gc.isenabled()
        assert gc.get_count()[0] < len(made)


def test_each_allocator_is_asked_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """glibc's trims; macOS's relieves all zones (None) of all that they have (0); another's has neither."""
    asked: list[tuple[object, ...]] = []

    def relieve(zone: None, goal: ctypes.c_size_t) -> None:
        asked.append((zone, goal.value))

    for libc in (
        SimpleNamespace(malloc_trim=lambda pad: asked.append((pad,))),
        SimpleNamespace(malloc_zone_pressure_relief=relieve),
        SimpleNamespace(),
    ):
        monkeypatch.setattr(large_work, "_libc", libc)
        large_work.return_small_blocks()
    assert asked == [(0,), (None, 0)]
