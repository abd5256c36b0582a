"""A fleet of scripted models, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from scheduler.events import Finished
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.fleet.residency import ModelState
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler

PLAN = ScriptedPlan(step_seconds=0.01)


class OneFits:
    """Memory for one model: each needs more than half of it."""

    budget_bytes = 100

    def need_bytes(self, model: str) -> int:
        return 60


class Farm:
    """A fleet of scripted models; the first one is loaded at the start."""

    def __init__(
        self,
        *names: str,
        memory: Any = None,
        idle_seconds: float | None = None,
        plan: ScriptedPlan = PLAN,
    ) -> None:
        self._plan = plan
        self.launchers = {name: LoopbackLauncher() for name in names}
        self.models = {
            name: Model(name, self._scheduler(name, first=name == names[0]), idle_seconds=idle_seconds)
            for name in names
        }
        self.fleet = Fleet(list(self.models.values()), memory)

    def _scheduler(self, name: str, first: bool) -> Scheduler:
        return make_scheduler(self.launchers[name], self._plan, load_at_start=first, must_start=False)

    def state(self, name: str) -> ModelState:
        return self.models[name].state

    async def reaches(self, name: str, state: ModelState) -> None:
        with trio.fail_after(600.0):
            while self.state(name) is not state:
                await self.fleet.wait_change()

    async def answer(self, name: str, text: str = "hello", max_tokens: int = 8) -> str:
        text, end = await answer(
            self.models[name].scheduler, ask(text, max_tokens=max_tokens, ignore_eos=True)
        )
        assert isinstance(end, Finished), end
        return text


@asynccontextmanager
async def running(farm: Farm) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(farm.fleet.run)
        await farm.fleet.wait_started()
        yield
        nursery.cancel_scope.cancel()
