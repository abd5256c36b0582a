"""A pool of simulated engines behind the real server, all in this process and on a virtual clock.

The scheduler, the link's frames and each engine's loop with its prefix cache are the real ones; only the
model and the processes are missing. A step lasts as long as its `Timing` says, on trio's clock, so that a
simulated hour takes seconds and equal runs are equal.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import trio
from trio.testing import MockClock, memory_stream_pair

from scheduler.config import EngineConfig, IntakeConfig, SchedulerConfig
from scheduler.engine.backend import StepResult
from scheduler.engine.chunk_ceiling import ChunkCeiling
from scheduler.engine.loop import EngineLoop
from scheduler.engine.pace import PrefillPace
from scheduler.engine.plan import StepPlan
from scheduler.engine.prefill import Chunk
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.engines.boundary import EngineProvision
from scheduler.engines.placement import Place, least_seconds
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, Session
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.offload import Lane
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.tokenizer import HubTokenizer
from scheduler.service import Scheduler
from scheduler.shared.framing import encode, engine_inbound
from scheduler.shared.messages import Load, PrefillOut, ScriptedPlan, StepOutput, ToEngine

_T = TypeVar("_T")
_START_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a simulated step lasts: `step_seconds`, and more for each row and each prompt token."""

    step_seconds: float
    row_seconds: float = 0.0
    token_seconds: float = 0.0


class SimulatedEngines:
    """An `EngineLauncher` for any number of engines. `tokens`: sent by all of them; `cpu_seconds`: what they
    have taken of this thread's processor time, the rest of which is the server's."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.tokens = 0
        self.cpu_seconds = 0.0

    async def run(self, session: Session) -> Exit:
        ours, theirs = memory_stream_pair()
        channel = Channel(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.write_forever)
            nursery.start_soon(_Engine(theirs, self._timing, self).live)
            try:
                await session(channel)
            finally:
                nursery.cancel_scope.cancel()
        return Exit(-signal.SIGKILL)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count this block's processor time as an engine's."""
        began = time.thread_time()
        try:
            yield
        finally:
            self.cpu_seconds += time.thread_time() - began


class _Clock:
    """An engine's clock. Within a step it is ahead of trio's, by the time that the step takes."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return trio.current_time() + self.ahead_seconds

    async def catch_up(self) -> None:
        """Let the step's time pass for all other tasks."""
        seconds, self.ahead_seconds = self.ahead_seconds, 0.0
        await trio.sleep(seconds)


class _Backend(ScriptedBackend):
    """Reports its simulated step times, so that the speed models of engine and server learn them; and, as the
    real one does, puts a prompt into the prefix cache before its last token, not only when the row ends."""

    def __init__(self, load: Load, timing: Timing, clock: _Clock) -> None:
        super().__init__(load.scripted, kv_cache_bytes=load.kv_cache_bytes, clock=clock)
        self._timing = timing
        self._ahead = clock

    def step(self, plan: StepPlan) -> StepResult:
        result = super().step(plan)
        timing = self._timing
        prefill_seconds = timing.token_seconds * result.computed_prefill_tokens
        seconds = timing.step_seconds + timing.row_seconds * result.decoded_rows + prefill_seconds
        self._ahead.ahead_seconds += seconds
        return replace(result, prefill_seconds=prefill_seconds, model_seconds=seconds)

    def _prefill(self, chunk: Chunk) -> PrefillOut:
        progress = super()._prefill(chunk)
        if progress.done == progress.total - 1:
            self.keep(chunk.request_id, progress.done)
        return progress


class _Engine:
    """What `python -m scheduler.engine` is, over a memory stream."""

    def __init__(self, link: trio.abc.Stream, timing: Timing, engines: SimulatedEngines) -> None:
        self._link = link
        self._timing = timing
        self._engines = engines
        self._reader = engine_inbound()
        self._commands: list[ToEngine] = []
        self._arrived = trio.Event()

    async def live(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self._work()

    async def _read(self) -> None:
        while data := await self._link.receive_some():
            with self._engines.at_work():
                self._commands.extend(self._reader.feed(data))
            self._arrived.set()

    async def _work(self) -> None:
        load = (await self._wait())[0]
        assert isinstance(load, Load)
        clock = _Clock()
        backend = _Backend(load, self._timing, clock)
        pace = PrefillPace(load.prefill_chunk_tokens)
        loop = EngineLoop(backend, load.max_slots, pace, clock=clock, ceiling=ChunkCeiling.of(load))
        await self._link.send_all(encode(backend.describe()))
        while True:
            commands = await self._wait() if loop.idle else self._drain()
            with self._engines.at_work():
                frames = loop.turn(commands)
                data = b"".join(map(encode, frames))
            await clock.catch_up()
            if data:
                self._engines.tokens += sum(len(one.tokens) for one in frames if isinstance(one, StepOutput))
                await self._link.send_all(data)

    async def _wait(self) -> list[ToEngine]:
        while not self._commands:
            self._arrived = trio.Event()
            await self._arrived.wait()
        return self._drain()

    def _drain(self) -> list[ToEngine]:
        commands, self._commands = self._commands, []
        return commands


def simulated(main: Callable[[], Awaitable[_T]]) -> _T:
    """Run `main` on a virtual clock, which jumps to the next deadline whenever no task has anything to do."""
    return trio.run(main, clock=MockClock(autojump_threshold=0))


@dataclass(frozen=True, slots=True)
class SimulatedServer:
    """A running server with its engines."""

    scheduler: Scheduler
    engines: SimulatedEngines
    vocabulary: int


def prepared() -> Preparation:
    """Return the preparation of the embedded model's prompts, whose tokenizer takes a second to load."""
    return Preparation(HubTokenizer(EMBEDDED_FOLDER), inspect(EMBEDDED_FOLDER))


@asynccontextmanager
async def running_server(
    preparation: Preparation, timing: Timing, slots: int, engines: int, place: Place = least_seconds
) -> AsyncIterator[SimulatedServer]:
    """Yield when the engines are ready."""
    vocabulary = inspect(EMBEDDED_FOLDER).vocabulary
    launcher = SimulatedEngines(timing)
    config = SchedulerConfig(
        engine=EngineConfig(
            "scripted", str(EMBEDDED_FOLDER), max_slots=slots, scripted=ScriptedPlan(vocabulary=vocabulary)
        ),
        intake=IntakeConfig(),
        engines=engines,
    )
    scheduler = Scheduler(
        config, preparation, EngineProvision(lambda number: launcher), _in_place, place=place
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        # One is ready now. Simulated engines load in no time, so the others are ready within this time.
        await scheduler.wait_ready()
        await trio.sleep(_START_SECONDS)
        yield SimulatedServer(scheduler, launcher, vocabulary)
        nursery.cancel_scope.cancel()


async def _in_place(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
    """Call the function here, not in a worker thread, during which a virtual clock would jump."""
    await trio.lowlevel.checkpoint()
    return work()
