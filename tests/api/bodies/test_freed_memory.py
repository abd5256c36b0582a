"""Freed memory is returned to the system after large work, and not after each."""

from __future__ import annotations

import ctypes
from queue import Queue
from threading import Event
from types import SimpleNamespace

import pytest

from api.bodies import freed_memory
from api.bodies.freed_memory import SmallBlocks


def test_one_return_serves_all_work_that_ends_meanwhile_and_later_work_gets_another() -> None:
    returned, allowed = Queue[int](), Event()
    blocks = SmallBlocks(lambda: returned.put(1), allowed.wait)
    for _ in range(2):
        for _ in range(10):
            blocks.return_soon()
        allowed.set()
        assert returned.get(timeout=30)
        allowed.clear()
    assert returned.empty()


def test_work_that_ends_while_memory_is_returned_has_a_return_of_its_own() -> None:
    """The blocks that it frees may be where the first return has been already."""
    begun, ends = Queue[int](), Event()

    def give_back() -> None:
        begun.put(1)
        assert ends.wait(30)

    blocks = SmallBlocks(give_back, lambda: None)
    for _ in range(2):
        blocks.return_soon()
        assert begun.get(timeout=30)
    ends.set()


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
        monkeypatch.setattr(freed_memory, "_libc", libc)
        freed_memory.return_small_blocks()
    assert asked == [(0,), (None, 0)]
