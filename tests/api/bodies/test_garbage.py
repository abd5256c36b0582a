"""When garbage is collected: fully between requests, not while they wait; not at all during large work and a
moment after it, but never long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from api.bodies.garbage import LATEST_SECONDS, LOOK_SECONDS, MOST_SECONDS, LargeWork, collect_when_idle


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own, whatever the tests before have set
    gc.enable()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.enable()


@trio_test
async def test_no_full_collection_while_a_thousand_conversations_wait(autojump_clock: MockClock) -> None:
    """Whatever is made beside them; the next one finds the garbage that was left."""
    busy, generations = True, list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect_when_idle, lambda: busy)
        await trio.testing.wait_all_tasks_blocked()
        gc.callbacks.append(note)
        try:
            waiting = [[{"role": "user", "content": str(turn)} for turn in range(40)] for _ in range(1000)]
            made: list[Any] = [[{"a": []} for _ in range(10)] for _ in range(10_000)]
            await trio.sleep(3 * LOOK_SECONDS)
            assert set(generations) == {0, 1}
            busy = False
            # Not one look's time, of which this task may wake first.
            await trio.sleep(2 * LOOK_SECONDS)
            assert generations.count(2) == 1
            busy = True
            await trio.sleep(LATEST_SECONDS + LOOK_SECONDS)
            assert generations.count(2) == 2, "a server that is never idle collects in the end"
        finally:
            gc.callbacks.remove(note)
        assert len(waiting) == 1000
        assert made
        nursery.cancel_scope.cancel()


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
