"""A whole scheduler in one process: real intake, link, loop and streams over a loopback engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import trio

from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.config import EngineConfig, IntakeConfig, RecoveryConfig, SchedulerConfig, SupervisionConfig
from scheduler.engines.boundary import EngineProvision, Launchers, MemoryShare
from scheduler.events import Failed, Finished, StreamEvent, TextDelta
from scheduler.offload import Lane
from scheduler.processes.process import EngineLauncher
from scheduler.prompt.model_folder import ModelFolder
from scheduler.prompt.preparation import Preparation
from scheduler.request import ChatPrompt, GenerationRequest, Sampling
from scheduler.service import RequestStream, Scheduler
from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer

_T = TypeVar("_T")
FOLDER = ModelFolder(Path("none"), vocabulary=8192, context_tokens=40960, eos_token_ids=frozenset({EOS}))


async def in_place(work: Callable[[], _T], /, *, tenant: str = "", lane: Lane = Lane.PLAIN) -> _T:
    """Replaces the worker thread, during which a virtual clock would jump."""
    await trio.lowlevel.checkpoint()
    return work()


def make_scheduler(
    launcher: EngineLauncher | Launchers,
    plan: ScriptedPlan | None = None,
    *,
    max_slots: int = 4,
    max_queue: int = 1024,
    lookahead: int = 4,
    answer_format: AnswerFormat = PLAIN,
    cache_sharing: Literal["all", "tenant"] = "all",
    recovery: RecoveryConfig | None = None,
    supervision: SupervisionConfig | None = None,
    stall_seconds: float = 120.0,
    folder: ModelFolder = FOLDER,
    preparation: Preparation | None = None,
    kv_cache_bytes: int = -1,
    engine: EngineConfig | None = None,
    engines: int = 1,
    load_at_start: bool = True,
    must_start: bool = True,
    engines_join: bool = False,
    memory_limit: float = 0.0,
    share_of: Callable[[str], MemoryShare] = lambda engine: MemoryShare(),
    metrics: ModelMetrics | None = None,
    **intake: Any,
) -> Scheduler:
    """`launcher`: of the only engine, or of each by its number. `preparation`: with another tokenizer than
    the byte tokenizer. `engine`: not the scripted one."""
    config = SchedulerConfig(
        engine=engine
        or EngineConfig(
            "scripted",
            "none",
            max_slots=max_slots,
            kv_cache_bytes=kv_cache_bytes,
            memory_limit=memory_limit,
            scripted=plan or ScriptedPlan(step_seconds=0.01),
        ),
        supervision=supervision or SupervisionConfig(),
        intake=IntakeConfig(max_queue=max_queue, lookahead=lookahead, **intake),
        cache_sharing=cache_sharing,
        stall_seconds=stall_seconds,
        recovery=recovery or RecoveryConfig(),
        engines=engines,
        load_at_start=load_at_start,
        must_start=must_start,
        engines_join=engines_join,
    )
    preparation = preparation or Preparation(ByteTokenizer(answer_format), folder)
    launchers = launcher if callable(launcher) else lambda number: launcher
    return Scheduler(
        config,
        preparation,
        EngineProvision(launchers, share_of),
        in_place,
        metrics=metrics or Metrics().of_model("tiny"),
    )


@asynccontextmanager
async def running(scheduler: Scheduler) -> AsyncIterator[trio.Nursery]:
    """Yield the ready scheduler; its engine is gone after the block."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scheduler.run)
        await scheduler.wait_ready()
        yield nursery
        nursery.cancel_scope.cancel()


def ask(
    text: str = "hello", *, max_tokens: int | None = 8, stop: tuple[str, ...] = (), **fields: Any
) -> GenerationRequest:
    """`fields` are those of GenerationRequest: tenant, session, priority, timeout_seconds."""
    return GenerationRequest(
        public_id=f"test-{text[:16]}",
        prompt=ChatPrompt(({"role": "user", "content": text},)),
        sampling=Sampling(temperature=0.0),
        max_tokens=max_tokens,
        stop=stop,
        **fields,
    )


class Events:
    """The events of a stream with one choice."""

    def __init__(self, stream: RequestStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Events:
        # Not an async generator: ending the iteration early leaves nothing to finalize.
        return self

    async def __anext__(self) -> StreamEvent:
        try:
            return (await self._stream.receive_choice())[1]
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


async def answer(scheduler: Scheduler, request: GenerationRequest) -> tuple[str, Finished | Failed]:
    """Return the whole text and the final event."""
    text: list[str] = []
    final: StreamEvent | None = None
    async with scheduler.stream(request) as stream:
        async for event in Events(stream):
            assert final is None, "an event after the final one"
            if isinstance(event, TextDelta):
                text.append(event.text)
            if isinstance(event, Finished | Failed):
                final = event
    assert isinstance(final, Finished | Failed), "a stream without a final event"
    return "".join(text), final
