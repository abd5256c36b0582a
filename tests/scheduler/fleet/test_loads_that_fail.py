"""Loads of a model that fail, are stopped, or meet operators: it can be loaded again, and no memory is kept
for what is gone. Real schedulers and loops over memory, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import trio
from trio.testing import MockClock, trio_test

from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.fleet.model import RETRY_SECONDS
from scheduler.fleet.residency import ModelState
from scheduler.fleet.shared_memory import SharedMemory
from scheduler.processes.process import Exit, Session
from scheduler.shared.messages import Fault
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.scheduler.engines.engine_lives import READY, Life, LivesLauncher, says
from tests.scheduler.fleet.farm import Farm, OneFits, running

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


class Later(OneFits):
    """The others give back what a load needs after a while."""

    seconds = 0.0

    def __init__(self) -> None:
        self._asked_at: dict[str, float] = {}

    def reserve(self, model: str) -> None:
        self._asked_at[model] = trio.current_time()

    def may_load(self, model: str) -> bool:
        return trio.current_time() >= self._asked_at[model] + self.seconds


@asynccontextmanager
async def farm_of(
    titles: LoopbackLauncher, memory: OneFits | SharedMemory | None = None
) -> AsyncIterator[Farm]:
    """`planner` is loaded, `titles` is not."""
    farm = Farm(
        "planner",
        "titles",
        memory=memory,
        memory_limit=4_000_000 if isinstance(memory, SharedMemory) else 0.0,
        launchers={"titles": titles},
    )
    async with running(farm):
        yield farm


@trio_test
async def test_a_load_that_waits_for_memory_has_not_failed_yet(autojump_clock: MockClock) -> None:
    """What is known of its engine is of the load before it."""
    memory = Later()
    async with farm_of(Healing(*[NEVER_READY] * 3), memory) as farm:
        farm.fleet.load("titles", trio.current_time())
        await farm.reaches("titles", ModelState.FAILED)
        await trio.sleep(RETRY_SECONDS + 1)
        memory.seconds = 3.0
        assert await farm.answer("titles") == await farm.answer("planner")
        farm.fleet.unload("titles")
        await farm.reaches("titles", ModelState.UNLOADED)


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


@trio_test
async def test_an_engine_that_leaves_before_its_load_keeps_no_memory(autojump_clock: MockClock) -> None:
    memory = SharedMemory(MemoryBudget(), dict.fromkeys(("planner", "titles"), lambda device: 100_000))
    async with farm_of(LoopbackLauncher(), memory) as farm:
        pool = farm.models["titles"].scheduler.pool
        pool.add()
        farm.fleet.load("titles", trio.current_time())
        farm.fleet.iterate(trio.current_time())
        pool.drain("1")
        await farm.reaches("titles", ModelState.LOADED)
        farm.fleet.unload("titles")
        await farm.reaches("titles", ModelState.UNLOADED)
        assert [engine for engine, _ in memory._budget] == ["planner/0"]


@trio_test
async def test_an_engine_that_is_added_before_its_load_is_loaded_too(autojump_clock: MockClock) -> None:
    memory = SharedMemory(MemoryBudget(), dict.fromkeys(("planner", "titles"), lambda device: 100_000))
    async with farm_of(LoopbackLauncher(), memory) as farm:
        model = farm.models["titles"]
        model.reserve(trio.current_time())
        memory.reserve("titles")
        model.scheduler.pool.add()
        await farm.reaches("titles", ModelState.LOADED)
        assert await farm.answer("titles") == await farm.answer("planner")
