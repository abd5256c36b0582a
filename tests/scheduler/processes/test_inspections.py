"""Inspections: viewers share one reply a second."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.errors import Unavailable
from scheduler.processes.inspections import Inspections
from scheduler.shared.messages import Inspect, Inspection, ToEngine
from scheduler.shared.reports import CacheReport, PrefixReport


def report(count: int) -> CacheReport:
    held = [PrefixReport(10, 2, 1, [1, 2, 3, 4]) for _ in range(count)]
    return CacheReport(*(0,) * 12, {}, held)


class Engine:
    """Answers when a test calls `answer`."""

    def __init__(self) -> None:
        self.asked: list[Inspect] = []
        self.begin()

    def begin(self) -> None:
        """Its next process."""
        self.pending = Inspections(self._take)

    def _take(self, message: ToEngine) -> None:
        assert isinstance(message, Inspect)
        self.asked.append(message)

    def answer(self) -> None:
        """Answer the last query."""
        asked = self.asked[-1]
        self.pending.answered(Inspection(asked.query, 0, report(asked.top)))

    async def view(self, top: int = 0, head_tokens: int = 0) -> Inspection:
        return await self.pending.inspect(False, top, head_tokens)


@trio_test
async def test_a_hundred_viewers_cost_one_question_a_second(autojump_clock: trio.testing.MockClock) -> None:
    engine = Engine()
    answers: list[Inspection] = []

    async def viewer() -> None:
        while True:
            answers.append(await engine.view(top=12))
            await trio.sleep(0.25)

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(viewer)
        for _ in range(100):
            await trio.sleep(0.1)
            if engine.asked:
                engine.answer()
        nursery.cancel_scope.cancel()
    assert len(answers) > 3000
    assert 8 <= len(engine.asked) <= 11


@trio_test
async def test_an_answer_is_cut_to_what_was_asked(autojump_clock: trio.testing.MockClock) -> None:
    """A smaller query is part of a larger one; a larger one is sent again."""
    engine = Engine()
    found: list[Inspection] = []

    async def asked(top: int, head_tokens: int) -> Inspection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_answer_soon, engine)
            found.append(await engine.view(top, head_tokens))
        return found[-1]

    first = await asked(5, 3)
    assert first.cache is not None
    assert len(first.cache.shared_prefixes) == 5
    smaller = await engine.view(2, 0)
    assert smaller.cache is not None
    assert [prefix.head for prefix in smaller.cache.shared_prefixes] == [[], []]
    assert len(engine.asked) == 1
    await asked(6, 3)
    assert len(engine.asked) == 2


async def _answer_soon(engine: Engine) -> None:
    await trio.testing.wait_all_tasks_blocked()
    engine.answer()


@trio_test
async def test_a_clear_is_never_answered_from_memory(autojump_clock: trio.testing.MockClock) -> None:
    """And no reply from before it is returned after it."""
    engine = Engine()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_soon, engine)
        await engine.view()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_soon, engine)
        await engine.pending.inspect(True, 10, 0)
    assert [asked.clear for asked in engine.asked] == [False, True]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_soon, engine)
        await engine.view()
    assert len(engine.asked) == 3


@trio_test
async def test_a_dead_engine_fails_all_viewers_and_the_next_one_is_asked(
    autojump_clock: trio.testing.MockClock,
) -> None:
    engine = Engine()
    failed: list[Unavailable] = []

    async def viewer() -> None:
        with pytest.raises(Unavailable) as caught:
            await engine.view()
        failed.append(caught.value)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(viewer)
        await trio.testing.wait_all_tasks_blocked()
        engine.pending.close()
    assert len(failed) == 3
    with pytest.raises(Unavailable):
        await engine.view()
    engine.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_soon, engine)
        await engine.view()
    assert len(engine.asked) == 2


@trio_test
async def test_an_engine_that_is_silent_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    """After 30 seconds, and the next viewer sends a new query."""
    engine = Engine()
    for count in (1, 2):
        started = trio.current_time()
        with pytest.raises(Unavailable):
            await engine.view()
        assert trio.current_time() - started == 30
        assert len(engine.asked) == count
