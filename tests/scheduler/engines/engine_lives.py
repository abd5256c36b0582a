"""Engines that follow a script, one for each life, and the supervisor's reports of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio
import trio.testing

from scheduler.config import SupervisionConfig
from scheduler.engines.death import Death
from scheduler.engines.supervisor import Supervisor
from scheduler.processes.channel import Channel
from scheduler.processes.process import EngineLauncher, Exit, LaunchFailed, Session
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    Alive,
    Begun,
    FromEngine,
    Inspection,
    Load,
    Ready,
    ScriptedPlan,
    StepOutput,
    ToEngine,
)

LOAD = Load("scripted", "none", 4, 512, 8, "auto", ScriptedPlan())


READY = Ready(PROTOCOL_VERSION, "fake", "fake", 8192, 64, 0, "none")
CONFIG = SupervisionConfig(
    ready_seconds=60, backoff_first_seconds=1, backoff_limit_seconds=8, stable_seconds=100
)

Life = Callable[[trio.abc.Stream], Awaitable[None]]
"""One engine's behaviour at its end of the link; it dies when this returns."""


class LivesLauncher:
    """An `EngineLauncher` whose engines follow a script; the last life is repeated. One that is None cannot
    be launched."""

    def __init__(
        self,
        *lives: Life | None,
        exit_: Exit | None = None,
        channel: Callable[[trio.abc.Stream], Channel] = Channel,
    ) -> None:
        self._lives = lives
        self._channel = channel
        self._exit = exit_ or Exit(1)
        self.started_at: list[float] = []

    async def run(self, session: Session) -> Exit:
        life = self._lives[min(len(self.started_at), len(self._lives) - 1)]
        self.started_at.append(trio.current_time())
        if life is None:
            await trio.lowlevel.checkpoint()
            raise LaunchFailed("the engine could not be started: Too many open files")
        ours, theirs = trio.testing.memory_stream_pair()
        channel = self._channel(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.write_forever)
            nursery.start_soon(self._live, life, theirs)
            try:
                await session(channel)
            finally:
                nursery.cancel_scope.cancel()
        return self._exit

    @staticmethod
    async def _live(life: Life, link: trio.abc.Stream) -> None:
        await life(link)
        await link.aclose()


def says(*messages: FromEngine, then_lives: float = 0) -> Life:
    """An engine that sends these messages when it is started, and lives on for `then_lives` seconds."""

    async def life(link: trio.abc.Stream) -> None:
        await link.send_all(b"".join([encode(message) for message in messages]))
        await trio.sleep(then_lives)

    return life


FOREVER = 1e9
healthy = says(READY, then_lives=FOREVER)


@dataclass
class Heard:
    """An engine that records what its supervisor reports."""

    stages: list[str] = field(default_factory=list)
    messages: list[FromEngine] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    ready: Ready | None = None
    send: Callable[[ToEngine], None] | None = None

    async def load(self) -> Load:
        return LOAD

    def loading(self, stage: str) -> None:
        self.stages.append(stage)

    def process_ready(self, ready: Ready, send: Callable[[ToEngine], None]) -> None:
        self.calls.append("ready")
        self.ready, self.send = ready, send

    def began(self, begun: Begun) -> None:
        self.messages.append(begun)

    def step(self, output: StepOutput) -> None:
        self.messages.append(output)

    def replied(self, reply: Inspection | Alive) -> None:
        self.messages.append(reply)

    def lost(self, cause: str) -> None:
        self.calls.append("lost")
        self.causes.append(cause)

    def died(self, death: Death) -> None:
        self.deaths.append(death)


def supervise(launcher: EngineLauncher, config: SupervisionConfig = CONFIG) -> tuple[Supervisor, Heard]:
    heard = Heard()
    return Supervisor(launcher, heard, config), heard


async def run_for(supervisor: Supervisor, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await supervisor.run()
