"""A full collection of Python's garbage comes between requests, not while they wait."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.bodies.full_collections import LATEST_SECONDS, LOOK_SECONDS, FullCollections, collect_when_idle


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own, whatever the tests before have set
    gc.enable()
    yield
    gc.set_threshold(*before)


def test_one_is_due_when_the_last_request_is_over() -> None:
    """And none where there was no request since."""
    collections = FullCollections(0.0)
    assert [
        collections.due(now, busy=busy) for now, busy in ((1, False), (2, True), (3, False), (4, False))
    ] == [
        False,
        False,
        True,
        False,
    ]


def test_a_server_that_is_never_idle_collects_in_the_end() -> None:
    """So that garbage has a bound."""
    collections = FullCollections(0.0)
    times = [now for now in range(0, 3 * int(LATEST_SECONDS), 10) if collections.due(now, busy=True)]
    assert times == [LATEST_SECONDS, 2 * LATEST_SECONDS]


@trio_test
async def test_no_full_collection_while_a_thousand_conversations_wait(
    autojump_clock: trio.testing.MockClock,
) -> None:
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
        finally:
            gc.callbacks.remove(note)
        assert len(waiting) == 1000
        assert made
        nursery.cancel_scope.cancel()
