"""A whole service on a virtual clock: a fleet of schedulers with their engines' processes, and clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, TypeVar, cast
from unittest.mock import patch

import structlog.testing
import trio
from structlog.typing import EventDict

from scheduler.answer.text_stream import HEAVY, Heavy
from scheduler.config import RecoveryConfig
from scheduler.engines.boundary import MemoryShare
from scheduler.errors import SchedulerError, StartupError
from scheduler.events import AnswerPiece, Failed, Finished, TextDelta
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.fleet.model import Model
from scheduler.offload import Lane
from scheduler.request import GenerationRequest
from scheduler.requests.record import Part, StreamRecord
from scheduler.service import Scheduler
from scheduler.shared.messages import AdapterSource, EngineConfig, TokenOut
from tests.fakes.scheduling import make_scheduler
from tests.scheduler.service_machine.engine_process import (
    DEVICE_BYTES,
    FLOOR_BYTES,
    EngineProcess,
    Machine,
    ProcessesLauncher,
    whole_answer,
)

_T = TypeVar("_T")
ADAPTERS = [AdapterSource(f"a{name}", "/none", f"key{name % 2}") for name in range(3)]
"""Two of these names stand for one adapter."""
_TIGHT: dict[str, Any] = {
    "max_queue_per_tenant": 3,
    "max_queued_tokens": 900,
    "queue_seconds": 40.0,
    "max_running_seconds": 60.0,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """How a service is configured. `slots` and `lookahead` of each engine. `reads_late`: steps' budgets are
    spent soon. `is_tight`: the queue is bounded, and times are. `fails_to_trace`: all telemetry of ends
    fails. `shares_memory`: the models share one budget; else one of them fits. `adapters` are loaded at the
    start."""

    models: int
    engines: int
    slots: int
    lookahead: int
    reads_late: bool
    is_tight: bool
    fails_to_trace: bool
    shares_memory: bool
    adapters: int


class OneFits:
    """Memory for one model."""

    budget_bytes = 100

    def need_bytes(self, model: str) -> int:
        return 60


@dataclass(eq=False)
class Client:
    """It reads its stream, at most `patience` events if that is set."""

    model: int
    request: GenerationRequest
    patience: int | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    records: tuple[StreamRecord, ...] = ()
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    finals: dict[int, Finished | Failed] = field(default_factory=dict)
    is_done: bool = False

    async def live(self, scheduler: Scheduler) -> None:
        """Ask, and judge the answer if it comes to its end."""
        with suppress(SchedulerError), self.scope:
            async with scheduler.stream(self.request) as stream:
                self.records = stream._records
                for number in count(1):
                    try:
                        choice, event = await stream.receive_choice()
                    except trio.EndOfChannel:
                        break
                    assert choice not in self.finals, "an event after the final one"
                    match event:
                        case TextDelta(text=text):
                            self.texts[choice] += text
                        case Finished() | Failed():
                            self.finals[choice] = event
                        case _:
                            pass
                    if number == self.patience:
                        return
            for record in self.records:
                self._judge(record)

    def _judge(self, record: StreamRecord) -> None:
        text, reason, tokens = whole_answer(record.submit, self.request.stop)
        found = self.texts[record.choice]
        match self.finals.get(record.choice):
            case Finished(usage=usage) as final:
                assert usage.cached_tokens <= usage.prompt_tokens == len(record.submit.prompt)
                if not self.request.only_prompt:
                    assert (found, final.reason, usage.output_tokens) == (text, reason, tokens)
            case Failed():
                assert text.startswith(found)
            case None:
                raise AssertionError("a stream ended without a final event")

    def leave(self) -> None:
        self.scope.cancel()


class World:
    """`serve` must be running. `errors`: what clients and the fleet have met and should not; `over`: what has
    ended the fleet."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.machine = Machine(setup.slots)
        self.clients: list[Client] = []
        self.errors: list[BaseException] = []
        self.logs: list[EventDict] = []
        self.over: BaseException | None = None
        names = [f"m{number}" for number in range(setup.models)]
        needs = dict.fromkeys(names, lambda device: FLOOR_BYTES)
        self.shared = MemoryBudget(needs) if setup.shares_memory and setup.models > 1 else None
        self.schedulers = [self._scheduler(model) for model in range(setup.models)]
        if setup.models == 1:
            self.fleet = Fleet.of("m0", self.schedulers[0])
        else:
            models = [
                Model(name, scheduler, idle_seconds=90.0 if name != "m0" else None)
                for name, scheduler in zip(names, self.schedulers, strict=True)
            ]
            self.fleet = Fleet(models, self.shared or cast(MemoryBudget, OneFits()))

    def _scheduler(self, model: int) -> Scheduler:
        setup, shared = self.setup, self.shared
        scheduler = make_scheduler(
            lambda number: ProcessesLauncher(self.machine, (model, number)),
            engine=EngineConfig(
                "scripted",
                "none",
                max_slots=setup.slots,
                memory_limit=float(DEVICE_BYTES) if shared else 0.0,
                adapters=tuple(ADAPTERS[: setup.adapters]),
            ),
            engines=setup.engines,
            lookahead=setup.lookahead,
            max_queue=12,
            share_of=partial(shared.share_of, f"m{model}") if shared else lambda engine: MemoryShare(),
            load_at_start=model == 0,
            must_start=setup.models == 1,
            recovery=RecoveryConfig(max_failed_starts=4),
            **(_TIGHT if setup.is_tight else {}),
        )
        if shared:
            shared.follow(f"m{model}", scheduler.pool)
        reading = scheduler.pool.reading
        reading._offload = _offload
        if setup.reads_late:
            ticks = count()
            reading._clock = lambda: next(ticks) * 0.003
        if setup.fails_to_trace:
            scheduler.metrics.late_tokens.inc = _fails  # type: ignore[method-assign, assignment]
            scheduler.metrics.resumed.inc = _fails  # type: ignore[method-assign, assignment]
        return scheduler

    @property
    def processes(self) -> list[EngineProcess]:
        return [process for process in self.machine.processes.values() if not process.dead]

    async def serve(self) -> None:
        try:
            await self.fleet.run()
        except* StartupError as error:
            self.over = error

    async def ask(self, client: Client) -> None:
        try:
            await client.live(self.schedulers[client.model])
        except Exception as error:
            self.errors.append(error)
        client.is_done = True

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Within this block logs are kept here, and one letter's tokens are read in a worker thread."""
        with ExitStack() as stack:
            self.logs = stack.enter_context(structlog.testing.capture_logs())
            read = StreamRecord.read
            stack.enter_context(
                patch.object(StreamRecord, "read", lambda one, part: _heavily(read, one, part))
            )
            yield


def _fails(*_: object) -> None:
    raise ValueError("telemetry")


async def _offload(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
    await trio.sleep(1.5)
    return work()


def _heavily(
    read: Callable[[StreamRecord, Part], Iterator[AnswerPiece | Heavy]], record: StreamRecord, part: Part
) -> Iterator[AnswerPiece | Heavy]:
    if isinstance(part, TokenOut) and part.token == ord("h"):
        yield HEAVY
    yield from read(record, part)
