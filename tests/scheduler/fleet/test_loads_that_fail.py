"""Loads of a model that fail, are stopped, or meet operators: it can be loaded again. Real schedulers and
loops over memory, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
from trio.testing import MockClock, trio_test

from scheduler.fleet.residency import ModelState
from scheduler.processes.process import Exit, Session
from scheduler.shared.messages import Fault
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.scheduler.engines.engine_lives import READY, Life, LivesLauncher, says
from tests.scheduler.fleet.farm import Farm, running

NEVER_READY = says(then_lives=0.2)
SERVES_FIVE_SECONDS = says(READY, then_lives=5.0)
UNLIKE = says(msgspec.structs.replace(READY, vocabulary=100))


class Healing(LoopbackLauncher):
    """An engine whose first processes follow a script; the later ones are healthy. Each takes `exit_seconds`
    from the end of its link to its exit."""

    def __init__(self, *lives: Life, exit_seconds: float = 0.0) -> None:
        super().__init__()
        self._lives = list(lives)
        self._exit_seconds = exit_seconds

    async def run(self, session: Session) -> Exit:
        if not self._lives:
            return await super().run(session)
        life, self._lives = self._lives[0], self._lives[1:]
        try:
            return await LivesLauncher(life).run(session)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._exit_seconds):
                await trio.sleep_forever()


@asynccontextmanager
async def farm_of(
    titles: LoopbackLauncher,
) -> AsyncIterator[Farm]:
    """`planner` is loaded, `titles` is not."""
    farm = Farm(
        "planner",
        "titles",
        launchers={"titles": titles},
    )
    async with running(farm):
        yield farm


@trio_test
async def test_a_model_whose_engine_was_given_up_is_loaded_again_once_it_was_unloaded(
    autojump_clock: MockClock,
) -> None:
    async with farm_of(Healing(SERVES_FIVE_SECONDS, UNLIKE)) as farm:
        farm.fleet.load("titles", trio.current_time())
        await trio.sleep(30)
        assert all(engine.failed for engine in farm.models["titles"].scheduler.pool)
        farm.fleet.unload("titles")
        await farm.reaches("titles", ModelState.UNLOADED)
        assert await farm.answer("titles") == await farm.answer("planner")


@trio_test
async def test_a_load_that_is_stopped_while_its_process_ends_has_not_failed(
    autojump_clock: MockClock,
) -> None:
    async with farm_of(Healing(says(Fault("no memory")), exit_seconds=1.0)) as farm:
        farm.fleet.load("titles", trio.current_time())
        await trio.sleep(0.5)
        farm.fleet.unload("titles")
        await farm.reaches("titles", ModelState.UNLOADED)
        assert await farm.answer("titles") == await farm.answer("planner")


@trio_test
async def test_a_model_with_requests_is_loaded(autojump_clock: MockClock) -> None:
    """Its engine was ready for a moment, between two turns of the fleet: an unload waits for them."""
    async with (
        farm_of(Healing(says(READY, Fault("boom")), says(then_lives=2.0))) as farm,
        trio.open_nursery() as asks,
    ):
        asks.start_soon(farm.answer, "titles")
        await trio.sleep(0.5)
        farm.fleet.unload("titles")
        await trio.sleep(60)
        assert await farm.answer("titles") == await farm.answer("planner")
