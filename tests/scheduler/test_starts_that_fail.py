"""Engines that cannot be started, beside requests and other engines: nobody waits for one that does not come,
in virtual time."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.engines.supervisor import EngineNeverReady
from scheduler.errors import EngineLost, Unavailable
from scheduler.events import Failed, StreamEvent
from scheduler.processes.process import EngineLauncher
from scheduler.service import Scheduler
from scheduler.shared.framing import encode
from scheduler.shared.messages import Fault
from tests.fakes.scheduling import ask, make_scheduler
from tests.scheduler.engines.engine_lives import READY, Life, LivesLauncher, healthy, says

SERVES_FIVE_SECONDS = says(READY, then_lives=5.0)
UNLIKE = says(msgspec.structs.replace(READY, vocabulary=100), then_lives=1e9)
CANNOT_START = says(Fault("no GPU"))
NEVER_READY = says(then_lives=1.0)


def of(*launchers: EngineLauncher) -> Scheduler:
    """A scheduler of these engines, each of which has one slot."""
    return make_scheduler(launchers.__getitem__, engines=len(launchers), max_slots=1, lookahead=0)


def in_twenty_seconds(messages: bytes) -> Life:
    async def life(link: trio.abc.Stream) -> None:
        await trio.sleep(20)
        await link.send_all(messages)

    return life


async def _ask(scheduler: Scheduler, ends: list[StreamEvent]) -> None:
    async with scheduler.stream(ask()) as stream:
        while not isinstance(event := (await stream.receive_choice())[1], Failed):
            pass
        ends.append(event)


async def ends_of_two(scheduler: Scheduler) -> list[type[Exception]]:
    """Ask twice of one slot, so that one request runs and one waits. Return how both end."""
    ends: list[StreamEvent] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        await scheduler.wait_ready()
        with trio.fail_after(3600):
            async with trio.open_nursery() as both:
                both.start_soon(_ask, scheduler, ends)
                both.start_soon(_ask, scheduler, ends)
        nursery.cancel_scope.cancel()
    return [type(end.error) for end in ends if isinstance(end, Failed)]


BOTH = {EngineLost, Unavailable}
"""The request that ran, and the one that waited."""


@trio_test
async def test_an_engine_that_is_given_up_leaves_nobody_waiting(autojump_clock: MockClock) -> None:
    """Its next process has another vocabulary: no further one is started."""
    scheduler = of(LivesLauncher(SERVES_FIVE_SECONDS, UNLIKE))
    assert set(await ends_of_two(scheduler)) == BOTH


@trio_test
async def test_an_engine_that_failed_is_no_reason_to_wait_for_another(autojump_clock: MockClock) -> None:
    """It was tried once, so it has one failed start for ever."""
    scheduler = of(LivesLauncher(SERVES_FIVE_SECONDS, NEVER_READY), LivesLauncher(CANNOT_START))
    assert set(await ends_of_two(scheduler)) == BOTH


@trio_test
async def test_an_engine_that_served_counts_after_it_has_left(autojump_clock: MockClock) -> None:
    """The installation works: what cannot be started beside it does not end the service."""
    slow = LivesLauncher(in_twenty_seconds(encode(Fault("no GPU"))))
    scheduler = of(LivesLauncher(healthy), slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        await scheduler.wait_ready()
        scheduler.pool.remove("0")
        await trio.sleep(60)
        assert [(engine.name, engine.failed) for engine in scheduler.pool] == [("1", True)]
        nursery.cancel_scope.cancel()


@trio_test
async def test_where_none_has_served_the_service_ends(autojump_clock: MockClock) -> None:
    with pytest.raises(EngineNeverReady, match="no GPU"):
        await of(LivesLauncher(CANNOT_START), LivesLauncher(CANNOT_START)).run()
