"""Freed memory is returned to the system after large work, and not after each."""

from __future__ import annotations

from queue import Queue
from threading import Event

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
