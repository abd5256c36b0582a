"""How the supervisor starts engines, what it takes for their death, and when it starts the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.config import SupervisionConfig
from scheduler.engines.death import Death
from scheduler.engines.supervisor import EngineNeverReady, Supervisor
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, Session
from scheduler.shared.framing import encode
from scheduler.shared.messages import PROTOCOL_VERSION, Counters, Fault, Load, Loading, Ready, StepOutput
from scheduler.statistics import DeathCause, EngineCondition
from tests.scheduler.engines.engine_lives import (
    CONFIG,
    READY,
    Heard,
    Life,
    LivesLauncher,
    healthy,
    run_for,
    says,
    supervise,
)


async def still_loading(link: trio.abc.Stream) -> None:
    """Stages do not move the deadline for READY."""
    while True:
        await link.send_all(encode(Loading("weights")))
        await trio.sleep(7)


FAULT = says(Fault("no memory"))
OTHER = says(Ready(PROTOCOL_VERSION + 1, "", "", 0, 0, 0, ""))
TOO_EARLY = says(StepOutput([], [], [], Counters()))
NEVER: dict[str, tuple[Sequence[Life | None], Exit, list[float], str]] = {
    # What the first engines do and how they exit; when they are started, and why no further one is.
    "it says why": ([FAULT, healthy], Exit(1), [0], "^no memory$"),
    "it loads for ever": ([still_loading, healthy], Exit(1), [0], "not ready within 60 seconds"),
    "it speaks another protocol": ([OTHER, healthy], Exit(1), [0], "speaks protocol"),
    "it steps before it is ready": ([TOO_EARLY, healthy], Exit(1), [0], "before it was ready"),
    "three die in silence": ([says()], Exit(1), [0, 1, 3], "exited with status 1"),
    "three are killed": ([says()], Exit(-9), [0, 1, 3], "killed by SIGKILL: the system may lack memory"),
    "three cannot be launched": ([None], Exit(1), [0, 1, 3], "Too many open files"),
    "the second says why": ([says(), FAULT, healthy], Exit(1), [0, 1], "^no memory$"),
}


@pytest.mark.parametrize("case", NEVER)
@trio_test
async def test_a_first_engine_that_cannot_start_is_given_up(case: str, autojump_clock: MockClock) -> None:
    """At once where it shows why, as nothing would be different the second time; three deaths in silence are
    no accident. The operator reads the reason and nothing around it."""
    lives, exit_, started_at, reason = NEVER[case]
    launcher = LivesLauncher(*lives, exit_=exit_)
    supervisor, heard = supervise(launcher)
    with pytest.raises(EngineNeverReady, match=reason):
        await supervisor.run()
    assert launcher.started_at == started_at
    assert heard.calls == ["lost"] * len(started_at)
    if case == "it loads for ever":
        assert trio.current_time() == CONFIG.ready_seconds


STABLE = [says(READY), says(READY), says(READY, then_lives=99), says(READY, then_lives=100), healthy]
SLOW_START = 20.0


async def loads_slowly(link: trio.abc.Stream) -> None:
    await trio.sleep(SLOW_START)
    await says(READY, then_lives=5)(link)


AGAIN: dict[str, tuple[Sequence[Life | None], float, list[float], list[int]]] = {
    # Their lives, the bound of a load; when they are started, and the failed starts in a row at each loss.
    # Pauses of 1, 2, 4, 8, 8 seconds ... whether it dies before READY, says why, or dies after READY.
    "it dies young": (
        [says(READY), says(), FAULT, says(READY), says()],
        60,
        [0, 1, 3, 7, 15, 23, 31],
        [0, 1, 2, 0, 1, 2, 3],
    ),
    "it cannot be launched": (
        [says(READY), None, None, None, healthy],
        60,
        [0, 1, 3, 7, 15],
        [0, 1, 2, 3, 0],
    ),
    # After 100 seconds the next pause is short again.
    "it was stable": (STABLE, 60, [0, 1, 3, 106, 207], [0] * 5),
    # A later load has twenty times what the slowest took: one that hangs is ended, to try another.
    "it loads for ever": (
        [loads_slowly, still_loading, healthy],
        3600,
        [0, 26, 28 + 20 * SLOW_START],
        [0, 1, 0],
    ),
}


@pytest.mark.parametrize("case", AGAIN)
@trio_test
async def test_an_engine_that_was_ready_once_is_restarted_for_ever(
    case: str, autojump_clock: MockClock
) -> None:
    """With growing pauses. The failed starts in a row are known to who hears of a loss."""
    lives, ready_seconds, started_at, failed_starts = AGAIN[case]
    launcher, counts = LivesLauncher(*lives), list[int]()

    class Counting(Heard):
        def lost(self, cause: str) -> None:
            counts.append(supervisor.failed_starts)

    config = SupervisionConfig(ready_seconds, CONFIG.backoff_first_seconds, 8, stable_seconds=100)
    supervisor = Supervisor(launcher, Counting(), config)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(started_at[-1] + 0.5)
        if lives[-1] is healthy:
            assert (supervisor.condition, supervisor.failed_starts) == (EngineCondition.READY, 0)
            assert supervisor.restarts == len(started_at) - 1
        nursery.cancel_scope.cancel()
    assert (launcher.started_at, counts) == (started_at, failed_starts)


OUT_OF_MEMORY = (
    "[METAL] Command buffer execution failed: (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
)
MALLOC = "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes"


@pytest.mark.parametrize(
    ("last_words", "exit_", "cause", "death", "detail"),
    [
        (Fault(MALLOC), Exit(1), MALLOC, DeathCause.OUT_OF_MEMORY, MALLOC),
        (READY, Exit(1), "sent Ready after it was ready", DeathCause.FAULT, None),
        (None, Exit(-6, ("loading", OUT_OF_MEMORY)), "ended", DeathCause.OUT_OF_MEMORY, OUT_OF_MEMORY),
    ],
    ids=["fault", "a second READY", "stderr"],
)
@trio_test
async def test_the_engine_hears_once_of_each_death_and_why(
    last_words: Fault | Ready | None,
    exit_: Exit,
    cause: str,
    death: DeathCause,
    detail: str | None,
    autojump_clock: MockClock,
) -> None:
    """What it wrote says what it died of, after the loss and before the next start; operators read it, too.
    One that was stopped has not died."""
    words = [] if last_words is None else [last_words]
    launcher = LivesLauncher(says(READY, *words, then_lives=0.5), healthy, exit_=exit_)
    supervisor, heard = supervise(launcher)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, supervisor, 20)
        await trio.sleep(0.9)
        assert heard.calls == ["ready", "lost"]
        assert cause in heard.causes[0]
        assert heard.deaths == [Death(death, detail)]
        assert (supervisor.condition, supervisor.death_cause) == (EngineCondition.RESTARTING, death)
        assert not supervisor.linked
        assert (detail or cause) in (supervisor.last_death or "")
        await trio.sleep(18)
        assert heard.calls == ["ready", "lost", "ready"]
    assert (len(heard.deaths), supervisor.death_cause) == (1, DeathCause.STOPPED)


@trio_test
async def test_a_reported_reason_is_the_whole_message_and_its_stack_names_the_cause(
    autojump_clock: MockClock,
) -> None:
    """The cause of death is found in the stack, since the sentence is not in the error's own words."""
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
async def test_a_hung_engine_is_ended_immediately_and_replaced(autojump_clock: MockClock) -> None:
    """The launcher hears that there is no use in asking politely. One that is not ready cannot be declared
    hung: it has a deadline of its own."""
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
        assert (heard.calls, supervisor.death_cause) == (["lost", "ready"], DeathCause.START)
        supervisor.declare_hung("no step")
        await trio.sleep(0.1)
        assert (heard.causes[-1], supervisor.death_cause) == ("no step", DeathCause.HUNG)
        assert [channel.unresponsive for channel in channels] == [False, True]
        await trio.sleep(5)
        assert heard.calls == ["lost", "ready", "lost", "ready"]
        nursery.cancel_scope.cancel()


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
    supervisor = Supervisor(LivesLauncher(says(READY, then_lives=10), None, healthy), heard, CONFIG)
    await run_for(supervisor, 100)
    assert heard.calls == ["ready", "lost", "lost", "ready", "lost"]
    assert [death.cause for death in heard.deaths] == [DeathCause.EXIT, DeathCause.START]


@pytest.mark.parametrize("earlier", [0, 1], ids=["the first", "a later one"])
@trio_test
async def test_an_engine_that_is_refused_is_not_tried_again(earlier: int, autojump_clock: MockClock) -> None:
    """For what it says of itself, also after engines that were not refused."""
    asked: list[Ready] = []

    def refusal(ready: Ready) -> str:
        asked.append(ready)
        return "it is another model" if len(asked) > earlier else ""

    heard = Heard()
    launcher = LivesLauncher(*[says(READY, then_lives=5)] * earlier, healthy)
    with pytest.raises(EngineNeverReady, match=r"^it is another model$"):
        await Supervisor(launcher, heard, CONFIG, refusal).run()
    assert asked == [READY] * (earlier + 1)
    assert heard.calls == [*["ready", "lost"] * earlier, "lost"]
