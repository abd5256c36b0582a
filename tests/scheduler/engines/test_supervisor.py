"""How the supervisor runs an engine, reports its death and replaces it, in virtual time."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.engine.backend import Backend
from scheduler.engines.death import Death
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, Session
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    Cancel,
    Counters,
    Fault,
    Load,
    Loading,
    StepOutput,
)
from scheduler.statistics import DeathCause, EngineCondition
from tests.fakes.faulty_backend import EngineDeath
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.scheduler.engines.engine_lives import (
    FOREVER,
    LOAD,
    READY,
    LivesLauncher,
    healthy,
    run_for,
    says,
    supervise,
)


@trio_test
async def test_a_healthy_engine_is_started_once_and_heard(autojump_clock: MockClock) -> None:
    """Stages, READY, steps; it ends by cancelling, which the listener gets as its one death."""
    step = StepOutput([], [], [], Counters(steps=1))
    launcher = LivesLauncher(says(Loading("weights"), READY, step, then_lives=FOREVER))
    supervisor, heard = supervise(launcher)
    conditions = [supervisor.condition]
    supervisor.begin()
    conditions.append(supervisor.condition)
    assert conditions == [EngineCondition.UNLOADED, EngineCondition.STARTING]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 50)
        await trio.sleep(49)
        assert (supervisor.condition, heard.ready) == (EngineCondition.READY, READY)
        assert (supervisor.restarts, supervisor.failed_starts, supervisor.last_death) == (0, 0, None)
    assert heard.stages == ["weights"]
    assert heard.messages == [step]
    assert heard.calls == ["ready", "lost"]
    assert launcher.started_at == [0]


@trio_test
async def test_the_engine_receives_what_to_load_and_then_what_the_listener_sends(
    autojump_clock: MockClock,
) -> None:
    """Load is the first frame of every engine; the listener's `send` goes to the engine it came with."""
    received = bytearray()

    async def life(link: trio.abc.Stream) -> None:
        received.extend(await link.receive_some())
        await link.send_all(encode(READY))
        received.extend(await link.receive_some())
        await trio.sleep(FOREVER)

    supervisor, heard = supervise(LivesLauncher(life))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 10)
        await trio.sleep(1)
        assert heard.send is not None
        heard.send(Cancel(7))
    assert bytes(received) == encode(LOAD) + encode(Cancel(7))


@pytest.mark.parametrize(
    ("last_words", "cause"),
    [
        pytest.param(encode(Fault("out of memory")), "out of memory", id="fault"),
        pytest.param(encode(READY), "sent Ready after it was ready", id="a second READY"),
        pytest.param(b"\x00\x00\x00\x01\xc1", "is not a message", id="garbage"),
        pytest.param(b"", "the engine process ended", id="silence"),
    ],
)
@trio_test
async def test_the_listener_hears_once_of_each_death_and_why(
    last_words: bytes, cause: str, autojump_clock: MockClock
) -> None:
    """One `ready`, then one `lost` with the cause, which the statistics name too."""

    async def life(link: trio.abc.Stream) -> None:
        await link.send_all(encode(READY))
        await trio.sleep(0.5)
        await link.send_all(last_words)

    supervisor, heard = supervise(LivesLauncher(life, healthy))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 20)
        await trio.sleep(1)
        assert supervisor.condition is EngineCondition.RESTARTING
        assert not supervisor.linked
        await trio.sleep(18)
        assert heard.calls == ["ready", "lost", "ready"]
        assert cause in heard.causes[0]
        assert (supervisor.condition, supervisor.restarts) == (EngineCondition.READY, 1)
        assert supervisor.last_death is not None
        assert cause in supervisor.last_death


@trio_test
async def test_what_a_dead_engine_wrote_says_what_it_died_of(autojump_clock: MockClock) -> None:
    """The listener hears it after the loss and before the next start; operators read it in `last_death`."""
    told = "[METAL] Command buffer execution failed: (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
    launcher = LivesLauncher(says(READY, then_lives=1), exit_=Exit(-6, ("loading", told)))
    supervisor, heard = supervise(launcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1.5)
        assert heard.calls == ["ready", "lost"]
        assert heard.deaths == [Death(DeathCause.OUT_OF_MEMORY, told)]
        assert supervisor.death_cause is DeathCause.OUT_OF_MEMORY
        assert supervisor.last_death == f"the engine process ended; the engine was killed by SIGABRT: {told}"
        nursery.cancel_scope.cancel()
    assert len(heard.deaths) == 1, "an engine that was stopped has not died"


@trio_test
async def test_what_a_faulty_engine_said_over_the_link_is_read_as_well(autojump_clock: MockClock) -> None:
    """MLX refuses a large array by an exception, which the engine reports before it ends."""
    told = "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes"
    supervisor, heard = supervise(LivesLauncher(says(READY, Fault(told)), healthy))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        assert heard.deaths == [Death(DeathCause.OUT_OF_MEMORY, told)]
        assert supervisor.last_death == f"{told}; the engine exited with status 1"
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_real_loop_is_restarted_after_its_death(autojump_clock: MockClock) -> None:
    """The same over the engine's own loop: it dies while it loads, is killed, and comes back."""
    starts = 0

    def make_backend(load: Load) -> Backend:
        nonlocal starts
        starts += 1
        if starts == 1:
            raise EngineDeath
        return scripted(load)

    launcher = LoopbackLauncher(make_backend)
    supervisor, heard = supervise(launcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        assert heard.calls == ["lost", "ready"]
        launcher.kill()
        await trio.sleep(5)
        assert heard.calls == ["lost", "ready", "lost", "ready"]
        assert supervisor.restarts == 2
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_hung_engine_is_ended_immediately_and_replaced(autojump_clock: MockClock) -> None:
    """The listener hears why, and the launcher that there is no use in asking politely. One that is not
    ready cannot be declared hung: it has a deadline of its own."""
    channels: list[Channel] = []

    class Watched(LivesLauncher):
        async def run(self, session: Session) -> Exit:
            async def watched(channel: Channel) -> None:
                channels.append(channel)
                await session(channel)

            return await super().run(watched)

    supervisor, heard = supervise(Watched(says(Loading("weights"), then_lives=5), healthy))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        supervisor.declare_hung("too early")
        await trio.sleep(10)
        assert heard.calls == ["lost", "ready"]
        causes = [supervisor.death_cause]
        supervisor.declare_hung("no step")
        await trio.testing.wait_all_tasks_blocked()
        assert heard.causes[-1] == "no step"
        causes.append(supervisor.death_cause)
        assert [channel.unresponsive for channel in channels] == [False, True]
        await trio.sleep(5)
        assert heard.calls == ["lost", "ready", "lost", "ready"]
        nursery.cancel_scope.cancel()
    causes.append(supervisor.death_cause)
    assert causes == [DeathCause.START, DeathCause.HUNG, DeathCause.STOPPED]
