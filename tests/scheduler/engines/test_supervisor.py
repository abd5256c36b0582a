"""How the supervisor starts engines, what it takes for their death, and when it starts the next one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.config import SupervisionConfig
from scheduler.engines.death import Death
from scheduler.engines.supervisor import EngineNeverReady, Supervisor
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Counters,
    Fault,
    Load,
    Loading,
    Ready,
    ScriptedPlan,
    StepOutput,
)
from scheduler.statistics import DeathCause, EngineCondition
from tests.scheduler.engines.engine_lives import (
    READY,
    Life,
    LivesLauncher,
    healthy,
    says,
)

LOAD = Load("scripted", "none", 4, 512, 8, "auto", ScriptedPlan())
CONFIG = SupervisionConfig(
    ready_seconds=60, backoff_first_seconds=1, backoff_limit_seconds=8, stable_seconds=100
)


@dataclass
class Heard:
    """An engine that notes what its supervisor reports of its ends: the failed starts at each loss, and the
    causes."""

    failed_starts: list[int] = field(default_factory=list)
    causes: list[DeathCause] = field(default_factory=list)

    def supervisor(self, launcher: LivesLauncher, config: SupervisionConfig = CONFIG) -> Supervisor:
        self._supervisor = Supervisor(launcher, cast(Any, self), config)
        return self._supervisor

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None

    async def load(self) -> Load:
        return LOAD

    def lost(self, cause: str) -> None:
        self.failed_starts.append(self._supervisor.failed_starts)

    def died(self, death: Death) -> None:
        self.causes.append(death.cause)


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
    with pytest.raises(EngineNeverReady, match=reason):
        await Heard().supervisor(launcher).run()
    assert launcher.started_at == started_at
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
    launcher, heard = LivesLauncher(*lives), Heard()
    supervisor = heard.supervisor(launcher, replace(CONFIG, ready_seconds=ready_seconds))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(started_at[-1] + 0.5)
        if lives[-1] is healthy:
            assert (supervisor.condition, supervisor.failed_starts) == (EngineCondition.READY, 0)
            assert supervisor.restarts == len(started_at) - 1
        nursery.cancel_scope.cancel()
    assert (launcher.started_at, heard.failed_starts) == (started_at, failed_starts)


@trio_test
async def test_a_reported_reason_is_the_whole_message_and_its_stack_names_the_cause(
    autojump_clock: MockClock,
) -> None:
    """The cause of death is found in the stack, since the sentence is not in the error's own words."""
    fault = Fault("the model does not fit: buy memory", "Traceback\n  File\nMemoryError: 3 GB")
    heard = Heard()
    with pytest.raises(EngineNeverReady) as raised:
        await heard.supervisor(LivesLauncher(says(fault))).run()
    assert str(raised.value) == fault.error
    assert heard.causes == [DeathCause.OUT_OF_MEMORY]


@trio_test
async def test_a_model_whose_files_cannot_be_read_is_a_reported_reason(autojump_clock: MockClock) -> None:
    class Unreadable(Heard):
        async def load(self) -> Load:
            raise FileNotFoundError("model.safetensors is gone")

    with pytest.raises(EngineNeverReady, match=r"^the model's files cannot be read: .* is gone$"):
        await Unreadable().supervisor(LivesLauncher(healthy)).run()


@trio_test
async def test_a_hung_engine_is_not_asked_politely_to_end(autojump_clock: MockClock) -> None:
    """The launcher hears that it hangs, and kills it."""
    channels: list[Channel] = []

    def connected(stream: trio.abc.Stream) -> Channel:
        channels.append(Channel(stream))
        return channels[-1]

    supervisor = Heard().supervisor(LivesLauncher(healthy, channel=connected))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        await trio.sleep(1)
        supervisor.declare_hung("no step")
        await trio.sleep(0.1)
        assert supervisor.death_cause is DeathCause.HUNG
        assert [channel.unresponsive for channel in channels] == [True]
        nursery.cancel_scope.cancel()
