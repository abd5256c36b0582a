"""A server in this process whose preparation processes are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import trio.testing

from api.preparers.preparers import Preparers
from scheduler.answer.answer_format import PLAIN, AnswerFormat
from scheduler.service import Scheduler
from scheduler.telemetry.metrics import Metrics
from tests.api.client import client_of
from tests.fakes.memory_preparer import ByteRecipe, MemoryPreparer
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running


@dataclass(frozen=True, slots=True)
class Service:
    http: httpx.AsyncClient
    preparers: Preparers
    processes: list[MemoryPreparer]
    engine: Playback
    scheduler: Scheduler

    @property
    def held(self) -> int:
        return sum(process.held for process in self.processes)

    @property
    def calls(self) -> int:
        return sum(process.calls for process in self.processes)


@asynccontextmanager
async def service(
    processes: int = 1, answer_format: AnswerFormat = PLAIN, said: str = "Yes.", **options: Any
) -> AsyncIterator[Service]:
    """`options`: of the scheduler."""
    recipe = ByteRecipe(answer_format)
    launchers = [MemoryPreparer() for _ in range(processes)]
    preparers, preparation = Preparers(launchers, Metrics()), recipe.make()
    preparers.add("tiny", recipe, preparation)
    engine = Playback(said)
    scheduler = make_scheduler(
        engine, preparation=preparation, caches_elsewhere=partial(preparers.caches, "tiny"), **options
    )
    async with running(scheduler) as nursery, client_of(scheduler, readers=preparers) as client:
        nursery.start_soon(preparers.run)
        await trio.testing.wait_all_tasks_blocked()
        assert preparers.ready == processes
        yield Service(client, preparers, launchers, engine, scheduler)


def long_chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """A body that no server reads on its event loop."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{text} {i}"} for i in range(31)]
    return {"messages": turns, "max_tokens": 8, "temperature": 0, **fields}
