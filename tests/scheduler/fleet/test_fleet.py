"""Models that are loaded, unloaded and asked for: real schedulers and loops over memory, in virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.engine.backend import Backend
from scheduler.errors import ModelNotFound, StartupError, Unavailable
from scheduler.events import Failed, Finished, Queued
from scheduler.fleet.model import RETRY_SECONDS
from scheduler.fleet.residency import ModelState
from scheduler.shared.messages import Load, ScriptedPlan
from tests.fakes.loopback_engine import scripted
from tests.fakes.scheduling import Events, answer, ask
from tests.scheduler.fleet.farm import Farm, OneFits, running

SLOW_STEPS = ScriptedPlan(step_seconds=0.1)
"""Minutes of an engine in a tenth of the steps, each of which takes real time."""


@trio_test
async def test_an_idle_model_has_no_process_and_comes_back(autojump_clock: MockClock) -> None:
    farm = Farm("planner", "titles", idle_seconds=300.0)
    async with running(farm):
        first = await farm.answer("titles")
        await trio.sleep(299.0)
        assert farm.state("titles") is ModelState.LOADED
        await farm.reaches("titles", ModelState.UNLOADED)
        assert not farm.models["titles"].scheduler.pool.running
        assert await farm.answer("titles") == first
        assert farm.launchers["titles"].starts == 2
        life = farm.models["titles"].scheduler.pool.statistics()
        assert (life.restarts, life.last_death) == (0, None), "an unload is no death"


@trio_test
async def test_a_waiting_request_says_what_it_waits_for(autojump_clock: MockClock) -> None:
    farm = Farm("planner", "titles", memory=OneFits(), plan=SLOW_STEPS)
    async with running(farm), trio.open_nursery() as nursery:
        nursery.start_soon(farm.answer, "planner", "long", 800)
        await trio.sleep(1.0)
        async with farm.models["titles"].scheduler.stream(ask("hi")) as stream:
            await trio.sleep(2.0)
            assert stream.progress == Queued("memory, which planner has")
            await trio.sleep(60.0)
            assert stream.progress == Queued("memory, until planner is unloaded")
            events = [event async for event in Events(stream)]
        assert isinstance(events[-1], Finished)


@trio_test
async def test_models_that_do_not_fit_together_take_turns_and_lose_nothing(autojump_clock: MockClock) -> None:
    """Both are asked all the time; each request gets the tokens that it gets alone."""
    farm = Farm("planner", "titles", memory=OneFits(), plan=ScriptedPlan(step_seconds=0.3))
    ends: list[str] = []
    async with running(farm):
        expected = await farm.answer("planner", "same", 10)

        async def client(name: str) -> None:
            ends.extend([await farm.answer(name, "same", 10) for _ in range(60)])

        async with trio.open_nursery() as nursery:
            for name in ("planner", "titles") * 2:
                nursery.start_soon(client, name)
    assert ends == [expected] * 240
    starts = [launcher.starts for launcher in farm.launchers.values()]
    assert 2 <= min(starts) <= max(starts) <= 8


def refused(load: Load) -> Backend:
    raise ValueError("the shapes do not fit")


@trio_test
async def test_a_model_that_cannot_be_loaded_is_named_and_the_others_go_on(autojump_clock: MockClock) -> None:
    farm = Farm("planner", "titles")
    farm.launchers["titles"]._make_backend = refused
    async with running(farm):
        _, end = await answer(farm.models["titles"].scheduler, ask())
        assert isinstance(end, Failed)
        assert isinstance(end.error, Unavailable)
        assert "the model 'titles' cannot be loaded" in str(end.error)
        assert "the shapes do not fit" in str(end.error)
        await farm.reaches("titles", ModelState.FAILED)
        with pytest.raises(Unavailable, match="the shapes do not fit") as refusal:
            await farm.answer("titles")
        assert refusal.value.retry_after_seconds is not None
        assert 0 < refusal.value.retry_after_seconds <= RETRY_SECONDS
        await farm.answer("planner")
        # Mended, it is loaded by the first request after a while, or by an operator at once.
        farm.launchers["titles"]._make_backend = scripted
        await trio.sleep(RETRY_SECONDS)
        await farm.answer("titles")


@trio_test
async def test_where_no_model_can_be_loaded_the_server_does_not_start(autojump_clock: MockClock) -> None:
    farm = Farm("planner", "titles")
    farm.launchers["planner"]._make_backend = refused
    with pytest.RaisesGroup(pytest.RaisesExc(StartupError, match="planner: the shapes do not fit")):
        async with running(farm):
            pass


@trio_test
async def test_an_operator_loads_and_unloads_a_model(autojump_clock: MockClock) -> None:
    """Also in the middle of its load, after which it can be loaded again."""
    farm = Farm("planner", "titles", idle_seconds=100.0)
    async with running(farm):
        farm.fleet.load("titles", trio.current_time())
        await farm.reaches("titles", ModelState.LOADING)
        farm.fleet.unload("titles")
        await trio.sleep(100.0)
        assert farm.state("titles") is ModelState.UNLOADED
        farm.fleet.load("titles", trio.current_time())
        await farm.reaches("titles", ModelState.LOADED)
        await trio.sleep(90.0)
        assert farm.state("titles") is ModelState.LOADED
        farm.fleet.unload("titles")
        await trio.sleep(1.0)
        assert farm.state("titles") is ModelState.UNLOADED
        with pytest.raises(ModelNotFound):
            farm.fleet.load("nobody", trio.current_time())
