"""The models of this server: each has a scheduler of its own, and is loaded when a request asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import structlog
import trio

from scheduler.errors import ModelNotFound, StartupError
from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.fleet.model import Model
from scheduler.fleet.residency import ModelState, decide
from scheduler.intake.fair_queue import FairQueue
from scheduler.service import Scheduler

_log = structlog.get_logger("fleet")
_TICK_SECONDS = 1.0
"""Time between two decisions without a request: idle models, and those whose turn is over, are noticed this
late."""


class Fleet:
    """All models of a server. `run` must be running. Requests that name no model get the first one. Without
    `memory` each model may be loaded at once."""

    def __init__(self, models: Sequence[Model], memory: MemoryBudget | None = None) -> None:
        self._models = {model.name: model for model in models}
        self._memory = memory
        self._change = trio.Event()
        self.retiring = False
        """Whether another process takes the requests to come. The live page, which would show this one
        without end, then ends."""
        schedulers = [model.scheduler for model in models]
        share_charges({one.queue.fair: one.service_token_seconds for one in schedulers})
        for model in models:
            model.notify = self._notify

    @classmethod
    def of(cls, name: str, scheduler: Scheduler) -> Fleet:
        """Return the fleet of one model, which is always loaded."""
        return cls([Model(name, scheduler, pinned=True)])

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def __getitem__(self, name: str) -> Model:
        """Raise ModelNotFound."""
        try:
            return self._models[name]
        except KeyError:
            raise ModelNotFound(f"there is no model {name!r}", param="model") from None

    @property
    def first(self) -> Model:
        return next(iter(self))

    async def run(self) -> None:
        """Run all models until cancelled, which ends all engines and fails every request.

        Raise EngineNeverReady if the only model cannot be loaded.
        """
        async with trio.open_nursery() as nursery:
            for model in self:
                nursery.start_soon(self._run, model)
            while True:
                # A change that woke this task may be the schedulers' end.
                await trio.lowlevel.checkpoint_if_cancelled()
                try:
                    self.iterate(trio.current_time())
                except Exception:
                    # Models that are loaded go on, whatever is wrong with a decision about others.
                    _log.exception("fleet_turn_failed")
                with trio.move_on_after(_TICK_SECONDS):
                    await self._change.wait()

    async def _run(self, model: Model) -> None:
        # Every line that its tasks log names the model.
        with structlog.contextvars.bound_contextvars(**({"model": model.name} if len(self) > 1 else {})):
            await model.scheduler.run()

    def iterate(self, now: float) -> None:
        """Decide which models are loaded, and begin what follows from it."""
        self._notify()
        self._change = trio.Event()
        for model in self:
            model.follow(now)
        memory = self._memory
        standings = [model.standing(memory.need_bytes(model.name) if memory else 0) for model in self]
        decision = decide(standings, memory.budget_bytes if memory else None, now)
        for name in decision.drain:
            self._models[name].hold()
        for name in decision.unload:
            self._models[name].unload()
        for name, reason in decision.impossible.items():
            _log.warning("model_does_not_fit", model=name, reason=reason)
            self._models[name].refuse_queued(reason)
        for model in self:
            model.waits = decision.waits.get(model.name)
        if decision.load is not None:
            self._models[decision.load].load()

    async def wait_started(self) -> None:
        """Wait until every model that is loaded at the start is ready or has failed. Raise StartupError if
        all have failed."""
        while any(model.state is ModelState.LOADING for model in self):
            await self.wait_change()
        failed = [model for model in self if model.reason is not None]
        if failed and not any(model.state is ModelState.LOADED for model in self):
            raise StartupError("; ".join(f"{model.name}: {model.reason}" for model in failed))

    async def wait_change(self) -> None:
        """Wait until the state of a model may have changed."""
        await self._change.wait()

    def load(self, name: str, now: float) -> Model:
        """Have a model loaded, as an operator asks. Raise ModelNotFound."""
        model = self[name]
        model.want(now)
        self._notify()
        return model

    def unload(self, name: str) -> Model:
        """Unload a model when the requests that its engines have are over, or at once if it is still being
        loaded. Raise ModelNotFound."""
        model = self[name]
        model.give_up()
        self._notify()
        return model

    @property
    def busy(self) -> bool:
        """Return whether a request is queued or running."""
        return any(model.scheduler.busy for model in self)

    def start_drain(self) -> None:
        """Close admission; accepted requests continue."""
        for model in self:
            model.scheduler.start_drain()

    async def wait_idle(self) -> None:
        """Wait until no request is queued or running."""
        for model in self:
            await model.scheduler.wait_idle()

    def end_all(self) -> None:
        """Fail every request with a shutdown error, and close admission."""
        for model in self:
            model.scheduler.end_all()

    def _notify(self) -> None:
        self._change.set()


Seconds: TypeAlias = Callable[[], float | None]
"""Returns a model's engine time of one token of service, or None before it is measured."""


def share_charges(queues: Mapping[FairQueue, Seconds]) -> None:
    """Make each charge to a tenant in one of these models' queues in the others, too, converted by the engine
    time of a token of service, so that no tenant doubles its share of the device by using two models.
    Sessions compete within a tenant, and an agent's session is on one model."""

    def spread(charged: FairQueue, priority: int, tenant: str, tokens: float, at: float, now: float) -> None:
        for queue, seconds in queues.items():
            if queue is not charged:
                # Until both are measured, a token counts as much here as there.
                there, here = queues[charged](), seconds()
                ratio = there / here if there and here else 1.0
                queue.charge_elsewhere(priority, tenant, tokens * ratio, at, now)

    for queue in queues:
        queue.on_charge = partial(spread, queue)
