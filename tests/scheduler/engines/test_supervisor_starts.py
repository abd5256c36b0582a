"""How the supervisor starts an engine: deadlines, failed starts and backoff, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.config import SupervisionConfig
from scheduler.engine.backend import Backend
from scheduler.engines.death import Death
from scheduler.engines.supervisor import EngineNeverReady, Supervisor
from scheduler.processes.process import Exit, LaunchFailed, Session
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Counters,
    Fault,
    Load,
    Loading,
    Ready,
    StepOutput,
)
from scheduler.statistics import DeathCause, EngineCondition
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.scheduler.engines.engine_lives import (
    CONFIG,
    FOREVER,
    READY,
    Heard,
    Life,
    LivesLauncher,
    healthy,
    run_for,
    says,
    supervise,
)


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
async def test_a_reported_reason_is_the_whole_message_and_its_stack_names_the_cause(
    autojump_clock: MockClock,
) -> None:
    """The operator reads the engine's sentence and nothing around it. The cause of death is found in the
    stack, since the sentence is not in the error's own words."""
    fault = Fault("the model does not fit: buy memory", "Traceback\n  File\nMemoryError: 3 GB")
    supervisor, heard = supervise(LivesLauncher(says(fault)))
    with pytest.raises(EngineNeverReady) as raised:
        await supervisor.run()
    assert str(raised.value) == fault.error
    assert [death.cause for death in heard.deaths] == [DeathCause.OUT_OF_MEMORY]


@trio_test
async def test_a_model_whose_files_cannot_be_read_is_a_reported_reason(autojump_clock: MockClock) -> None:
    class Unreadable(Heard):
        async def load(self) -> Load:
            raise FileNotFoundError("model.safetensors is gone")

    supervisor = Supervisor(LivesLauncher(healthy), Unreadable(), CONFIG)
    with pytest.raises(EngineNeverReady, match=r"^the model's files cannot be read: .* is gone$"):
        await supervisor.run()


@trio_test
async def test_engines_killed_while_they_load_hint_at_memory(autojump_clock: MockClock) -> None:
    """Linux' out-of-memory killer leaves no other trace."""
    supervisor, _ = supervise(LivesLauncher(says(), exit_=Exit(-9)))
    with pytest.raises(EngineNeverReady, match=r"killed by SIGKILL: the system may lack memory"):
        await supervisor.run()


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


@trio_test
async def test_failed_starts_in_a_row_are_counted_when_the_listener_hears_of_them(
    autojump_clock: MockClock,
) -> None:
    """The listener decides by this number whether waiting is still kind; READY sets it to zero."""
    launcher = LivesLauncher(says(READY), says(), says(), says(READY, then_lives=FOREVER))
    counts: list[int] = []

    class Counting(Heard):
        def lost(self, cause: str) -> None:
            counts.append(supervisor.failed_starts)

    supervisor = Supervisor(launcher, Counting(), CONFIG)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(50)
        assert counts == [0, 1, 2]
        assert supervisor.failed_starts == 0
        nursery.cancel_scope.cancel()


@trio_test
async def test_a_real_loop_that_cannot_load_says_why(autojump_clock: MockClock) -> None:
    """An exception while loading is a Fault."""

    def make_backend(load: Load) -> Backend:
        raise ValueError("no such layer")

    supervisor, _ = supervise(LoopbackLauncher(make_backend))
    with pytest.raises(EngineNeverReady, match="no such layer"):
        await supervisor.run()


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


@dataclass
class Faulty(Heard):
    """A listener with a bug: it records what it hears of an engine's end, and then raises."""

    def lost(self, cause: str) -> None:
        super().lost(cause)
        raise ValueError("a bug in lost")

    def died(self, death: Death) -> None:
        super().died(death)
        raise ValueError("a bug in died")


@trio_test
async def test_a_bug_in_the_listener_does_not_stop_the_restarts(autojump_clock: MockClock) -> None:
    """Neither after a death, nor after a failed launch, nor when the engine is stopped."""
    heard = Faulty()
    supervisor = Supervisor(Starved(range(1, 2)), heard, CONFIG)
    await run_for(supervisor, 100)
    assert heard.calls == ["ready", "lost", "lost", "ready", "lost"]
    assert [death.cause for death in heard.deaths] == [DeathCause.EXIT, DeathCause.START]
    assert supervisor.death_cause is DeathCause.STOPPED


@trio_test
async def test_an_engine_that_cannot_be_launched_is_a_failed_start(autojump_clock: MockClock) -> None:
    """With backoff, and heard by the listener as any other; the service outlives it."""
    launcher = Starved(range(1, 5))
    supervisor, heard = supervise(launcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 100)
        await trio.sleep(14)
        assert (supervisor.condition, supervisor.failed_starts) == (EngineCondition.RESTARTING, 2)
        assert supervisor.death_cause is DeathCause.START
        assert "Too many open files" in (supervisor.last_death or "")
        await trio.sleep(80)
        assert (supervisor.condition, supervisor.failed_starts) == (EngineCondition.READY, 0)
    assert launcher.attempts_at == [0, 11, 13, 17, 25, 33]
    assert heard.calls == ["ready", *["lost"] * 5, "ready", "lost"]
    assert len(heard.deaths) == 5


@trio_test
async def test_a_first_engine_that_cannot_be_launched_is_given_up(autojump_clock: MockClock) -> None:
    supervisor, _ = supervise(Starved(range(0, 99)))
    with pytest.raises(EngineNeverReady, match="Too many open files"):
        await supervisor.run()


@pytest.mark.parametrize("earlier", [0, 1], ids=["the first", "a later one"])
@trio_test
async def test_an_engine_that_is_refused_is_not_tried_again(earlier: int, autojump_clock: MockClock) -> None:
    """For what it says of itself, also after engines that were not refused."""
    launcher = LivesLauncher(*[says(READY, then_lives=5)] * earlier, healthy)
    heard = Heard()
    asked: list[Ready] = []

    def refusal(ready: Ready) -> str:
        asked.append(ready)
        return "it is another model" if len(asked) > earlier else ""

    with pytest.raises(EngineNeverReady, match=r"^it is another model$"):
        await Supervisor(launcher, heard, CONFIG, refusal).run()
    assert asked == [READY] * (earlier + 1)
    assert heard.calls == [*["ready", "lost"] * earlier, "lost"]
