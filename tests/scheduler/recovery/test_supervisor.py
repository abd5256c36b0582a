"""The life of the engine as the supervisor leads it, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.config import SupervisionConfig
from scheduler.engine.backend import Backend
from scheduler.link.channel import Channel
from scheduler.link.framing import encode
from scheduler.link.messages import (
    PROTOCOL_VERSION,
    Cancel,
    Counters,
    Fault,
    Load,
    Loading,
    Ready,
    StepOutput,
)
from scheduler.link.process import Exit, LaunchFailed, Session
from scheduler.recovery.death import Death
from scheduler.recovery.supervisor import EngineNeverReady, Supervisor
from scheduler.statistics import DeathCause, EngineCondition
from tests.fakes.faulty_backend import EngineDeath
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.scheduler.recovery.engine_lives import (
    CONFIG,
    FOREVER,
    LOAD,
    READY,
    Heard,
    Life,
    LivesLauncher,
    healthy,
    run_for,
    says,
    supervise,
)


@trio_test
async def test_a_healthy_engine_is_started_once_and_heard(autojump_clock: MockClock) -> None:
    """Stages, READY, steps; ended by cancelling, which the listener hears as its one death."""
    step = StepOutput([], [], [], Counters(steps=1))
    launcher = LivesLauncher(says(Loading("weights"), READY, step, then_lives=FOREVER))
    supervisor, heard = supervise(launcher)
    assert supervisor.statistics().condition is EngineCondition.STARTING
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 50)
        await trio.sleep(49)
        statistics = supervisor.statistics()
        assert (statistics.condition, statistics.ready) == (EngineCondition.READY, READY)
        assert (statistics.restarts, statistics.failed_starts, statistics.last_death) == (0, 0, None)
    assert heard.stages == ["weights"]
    assert heard.outputs == [step]
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
    ("life", "cause"),
    [
        pytest.param(says(Fault("no such model")), "no such model", id="fault"),
        pytest.param(
            says(Loading("weights"), then_lives=FOREVER), "not ready within 60 seconds", id="deadline"
        ),
        pytest.param(
            says(Ready(PROTOCOL_VERSION + 1, "", "", 0, 0, 0, "")), "speaks protocol", id="another protocol"
        ),
        pytest.param(says(StepOutput([], [], [], Counters())), "before it was ready", id="a step too early"),
    ],
)
@trio_test
async def test_a_first_engine_that_shows_why_it_cannot_start_is_not_tried_again(
    life: Life, cause: str, autojump_clock: MockClock
) -> None:
    """The operator hears the reason at once; nothing would be different the second time."""
    launcher = LivesLauncher(life, healthy)
    supervisor, heard = supervise(launcher)
    with pytest.raises(EngineNeverReady, match=cause):
        await supervisor.run()
    assert len(launcher.started_at) == 1
    assert heard.calls == ["lost"]
    assert cause in heard.causes[0]


@trio_test
async def test_the_deadline_for_ready_is_kept_to_the_second(autojump_clock: MockClock) -> None:
    """Stages of loading do not move it."""

    async def life(link: trio.abc.Stream) -> None:
        while True:
            await link.send_all(encode(Loading("still at it")))
            await trio.sleep(7)

    supervisor, _ = supervise(LivesLauncher(life))
    with pytest.raises(EngineNeverReady):
        await supervisor.run()
    assert trio.current_time() == CONFIG.ready_seconds


@trio_test
async def test_a_later_load_has_twenty_times_what_the_slowest_took(autojump_clock: MockClock) -> None:
    """And at least five minutes: one that hangs is ended long before the first's bound, to try another."""
    slow_start = 20.0

    async def loads(link: trio.abc.Stream) -> None:
        await trio.sleep(slow_start)
        await says(READY, then_lives=5)(link)

    config = SupervisionConfig(ready_seconds=3600, backoff_first_seconds=1)
    launcher = LivesLauncher(loads, says(Loading("weights"), then_lives=FOREVER), healthy)
    supervisor, heard = supervise(launcher, config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(900)
        nursery.cancel_scope.cancel()
    died_at = slow_start + 5
    assert launcher.started_at == [0, died_at + 1, died_at + 1 + 20 * slow_start + 2]
    assert "not ready within 400 seconds" in heard.causes[1]


@trio_test
async def test_a_first_engine_that_dies_in_silence_is_tried_three_times(autojump_clock: MockClock) -> None:
    """Killed by somebody, perhaps; three times is no accident."""
    launcher = LivesLauncher(says())
    supervisor, heard = supervise(launcher)
    with pytest.raises(EngineNeverReady, match="exited with status 1"):
        await supervisor.run()
    assert launcher.started_at == [0, 1, 3]
    assert heard.calls == ["lost"] * 3


@trio_test
async def test_a_silent_death_and_then_a_reason_ends_the_tries(autojump_clock: MockClock) -> None:
    """The reason counts whenever it is said before the first READY."""
    launcher = LivesLauncher(says(), says(Fault("no memory")))
    supervisor, _ = supervise(launcher)
    with pytest.raises(EngineNeverReady, match="no memory"):
        await supervisor.run()
    assert len(launcher.started_at) == 2


@trio_test
async def test_an_engine_that_was_ready_once_is_restarted_for_ever_with_growing_pauses(
    autojump_clock: MockClock,
) -> None:
    """1, 2, 4, 8, 8 seconds ... whether it dies before READY, says why, or dies after READY."""
    launcher = LivesLauncher(says(READY), says(), says(Fault("no memory")), says(READY), says())
    supervisor, heard = supervise(launcher)
    await run_for(supervisor, 32)
    assert launcher.started_at == [0, 1, 3, 7, 15, 23, 31]
    assert heard.calls[:6] == ["ready", "lost", "lost", "lost", "ready", "lost"]


@trio_test
async def test_a_stable_engine_makes_the_next_pause_short_again(autojump_clock: MockClock) -> None:
    """The pauses are for engines that die young."""
    launcher = LivesLauncher(
        says(READY), says(READY), says(READY, then_lives=99), says(READY, then_lives=100), healthy
    )
    supervisor, _ = supervise(launcher)
    await run_for(supervisor, 1000)
    first, second, third, fourth, fifth = launcher.started_at
    assert second - first == 1
    assert third - second == 2
    assert fourth - (third + 99) == 4
    assert fifth - (fourth + 100) == 1


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
        assert supervisor.statistics().condition is EngineCondition.RESTARTING
        assert supervisor.statistics().ready is None
        await trio.sleep(18)
        assert heard.calls == ["ready", "lost", "ready"]
        assert cause in heard.causes[0]
        statistics = supervisor.statistics()
        assert (statistics.condition, statistics.restarts) == (EngineCondition.READY, 1)
        assert statistics.last_death is not None
        assert cause in statistics.last_death


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
        statistics = supervisor.statistics()
        assert statistics.death_cause is DeathCause.OUT_OF_MEMORY
        assert statistics.last_death == f"the engine process ended; the engine was killed by SIGABRT: {told}"
        nursery.cancel_scope.cancel()
    assert len(heard.deaths) == 1, "an engine that was stopped has not died"


@trio_test
async def test_what_a_faulty_engine_said_over_the_link_is_read_as_well(autojump_clock: MockClock) -> None:
    """MLX refuses a large array by an exception, which the engine tells before it ends."""
    told = "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes"
    supervisor, heard = supervise(LivesLauncher(says(READY, Fault(told)), healthy))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(5)
        assert heard.deaths == [Death(DeathCause.OUT_OF_MEMORY, told)]
        assert supervisor.statistics().last_death == f"{told}; the engine exited with status 1"
        nursery.cancel_scope.cancel()


@trio_test
async def test_failed_starts_in_a_row_are_counted_when_the_listener_hears_of_them(
    autojump_clock: MockClock,
) -> None:
    """The listener decides by this number whether waiting is still kind; READY sets it to zero."""
    launcher = LivesLauncher(says(READY), says(), says(), says(READY, then_lives=FOREVER))
    counts: list[int] = []

    class Counting(Heard):
        def engine_lost(self, cause: str) -> None:
            counts.append(supervisor.statistics().failed_starts)

    supervisor = Supervisor(launcher, lambda: LOAD, Counting(), CONFIG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(50)
        assert counts == [0, 1, 2]
        assert supervisor.statistics().failed_starts == 0
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
        assert supervisor.statistics().restarts == 2
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_real_loop_that_cannot_load_says_why(autojump_clock: MockClock) -> None:
    """An exception while loading is a Fault."""

    def make_backend(load: Load) -> Backend:
        raise ValueError("no such layer")

    supervisor, _ = supervise(LoopbackLauncher(make_backend))
    with pytest.raises(EngineNeverReady, match="no such layer"):
        await supervisor.run()


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
        assert supervisor.statistics().death_cause is DeathCause.START
        supervisor.declare_hung("no step")
        await trio.testing.wait_all_tasks_blocked()
        assert heard.causes[-1] == "no step"
        assert supervisor.statistics().death_cause is DeathCause.HUNG
        assert [channel.unresponsive for channel in channels] == [False, True]
        await trio.sleep(5)
        assert heard.calls == ["lost", "ready", "lost", "ready"]
        nursery.cancel_scope.cancel()
    assert supervisor.statistics().death_cause is DeathCause.STOPPED


@dataclass
class Faulty(Heard):
    """A listener with a bug: it records what it hears of an engine's end, and then raises."""

    def engine_lost(self, cause: str) -> None:
        super().engine_lost(cause)
        raise ValueError("a bug in engine_lost")

    def engine_died(self, death: Death) -> None:
        super().engine_died(death)
        raise ValueError("a bug in engine_died")


@trio_test
async def test_a_bug_in_the_listener_does_not_stop_the_restarts(autojump_clock: MockClock) -> None:
    """Neither after a death, nor after a failed launch, nor when the engine is stopped."""
    heard = Faulty()
    supervisor = Supervisor(Starved(range(1, 2)), lambda: LOAD, heard, CONFIG)
    await run_for(supervisor, 100)
    assert heard.calls == ["ready", "lost", "lost", "ready", "lost"]
    assert [death.cause for death in heard.deaths] == [DeathCause.EXIT, DeathCause.START]
    assert supervisor.statistics().death_cause is DeathCause.STOPPED


class Starved(LivesLauncher):
    """Launches that fail from the second to the last of `failures`."""

    def __init__(self, failures: range) -> None:
        super().__init__(says(READY, then_lives=10), healthy)
        self._failures = failures
        self.attempts_at: list[float] = []

    async def run(self, session: Session) -> Exit:
        self.attempts_at.append(trio.current_time())
        if len(self.attempts_at) - 1 in self._failures:
            await trio.lowlevel.checkpoint()
            raise LaunchFailed("the engine could not be started: Too many open files")
        return await super().run(session)


@trio_test
async def test_an_engine_that_cannot_be_launched_is_a_failed_start(autojump_clock: MockClock) -> None:
    """With backoff, and heard by the listener as any other; the service outlives it."""
    launcher = Starved(range(1, 5))
    supervisor, heard = supervise(launcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 100)
        await trio.sleep(14)
        statistics = supervisor.statistics()
        assert (statistics.condition, statistics.failed_starts) == (EngineCondition.RESTARTING, 2)
        assert statistics.death_cause is DeathCause.START
        assert "Too many open files" in (statistics.last_death or "")
        await trio.sleep(80)
        assert supervisor.statistics().condition is EngineCondition.READY
        assert supervisor.statistics().failed_starts == 0
    assert launcher.attempts_at == [0, 11, 13, 17, 25, 33]
    assert heard.calls == ["ready", *["lost"] * 5, "ready", "lost"]
    assert len(heard.deaths) == 5


@trio_test
async def test_a_first_engine_that_cannot_be_launched_is_given_up(autojump_clock: MockClock) -> None:
    supervisor, _ = supervise(Starved(range(0, 99)))
    with pytest.raises(EngineNeverReady, match="Too many open files"):
        await supervisor.run()
