"""One memory budget over models that are loaded and unloaded: which limit each engine gets."""

from __future__ import annotations

import trio
from trio.testing import MockClock, trio_test

from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.fleet.residency import ModelState
from scheduler.fleet.shared_memory import SharedMemory
from tests.scheduler.fleet.farm import Farm, running


def sharing(need_bytes: int, names: tuple[str, ...] = ("planner", "titles")) -> SharedMemory:
    return SharedMemory(MemoryBudget(), {name: lambda device: need_bytes for name in names})


def limits(farm: Farm) -> dict[str, int]:
    """Return the limit of every running engine, as its own counters say."""
    found = {}
    for name, model in farm.models.items():
        if model.scheduler.pool.ready is not None:
            found[name] = model.scheduler.metrics.of_engine("0").now.guard.limit
    return found


@trio_test
async def test_a_second_model_gets_a_part_of_the_first_ones_memory_and_gives_it_back(
    autojump_clock: MockClock,
) -> None:
    budget_bytes = 4_000_000
    farm = Farm("planner", "titles", memory=sharing(100_000), memory_limit=budget_bytes)
    async with running(farm):
        await farm.answer("planner")
        assert limits(farm) == {"planner": budget_bytes}
        await farm.answer("titles")
        both = limits(farm)
        assert sum(both.values()) <= budget_bytes
        assert min(both.values()) >= 100_000
        farm.fleet.unload("titles")
        await farm.reaches("titles", ModelState.UNLOADED)
        await trio.sleep(10.0)
        assert limits(farm) == {"planner": budget_bytes}


@trio_test
async def test_an_engine_that_dies_is_loaded_with_its_part_again(autojump_clock: MockClock) -> None:
    budget_bytes = 4_000_000
    farm = Farm("planner", "titles", memory=sharing(100_000), memory_limit=budget_bytes)
    async with running(farm), trio.open_nursery() as nursery:
        await farm.answer("titles")
        nursery.start_soon(farm.answer, "planner", "long", 600)
        await trio.sleep(1.0)
        farm.launchers["planner"].kill()
        await trio.sleep(3.0)
        assert set(limits(farm)) == {"planner", "titles"}
        assert sum(limits(farm).values()) <= budget_bytes


@trio_test
async def test_what_needs_more_than_is_free_waits_for_an_idle_model_to_go(autojump_clock: MockClock) -> None:
    """By what the files say before a model was loaded, and by what its engine has reported afterwards."""
    farm = Farm("planner", "titles", memory=sharing(3_999_900), memory_limit=4_000_000)
    async with running(farm):
        await farm.answer("planner")
        await farm.answer("titles")
        assert farm.state("planner") is ModelState.UNLOADED
        # An engine without rows needs next to nothing here, as it has reported: now both fit.
        await farm.answer("planner")
        assert farm.state("titles") is ModelState.LOADED


@trio_test
async def test_without_a_limit_nobody_gets_one(autojump_clock: MockClock) -> None:
    farm = Farm("planner", "titles", memory=sharing(10**15))
    async with running(farm):
        await farm.answer("planner")
        await farm.answer("titles")
        assert limits(farm) == {"planner": 0, "titles": 0}
