"""The one memory budget of all models, as the fleet and each engine use it.

`memory_budget.py` knows engines by name and no models; here an engine is "model/engine".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from scheduler.engines.boundary import MemoryShare
from scheduler.engines.pool import Pool
from scheduler.fleet.fleet import FleetMemory
from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.shared.messages import Counters, Ready, SetMemoryLimit

_log = structlog.get_logger("fleet")


@dataclass(frozen=True, slots=True)
class EngineShare(MemoryShare):
    """An engine's part of one budget."""

    budget: MemoryBudget
    engine: str

    def given(self) -> SetMemoryLimit | None:
        if self.engine not in dict(self.budget):
            # An operator has added it, and no engine has given back memory for it: it gets what is free, and
            # reports if that is too little.
            self.budget.reserve(self.engine, 0)
        return self.budget.given(self.engine)

    def ready(self, ready: Ready) -> None:
        self.budget.ready(self.engine, ready)

    def observe(self, counters: Counters, now: float) -> None:
        try:
            self.budget.observe(self.engine, counters, now, counters.waiting > 0)
        except Exception:
            # A failure here must not cost the step that brought these counters.
            _log.exception("memory_budget_failed", engine=self.engine)

    def ended(self) -> None:
        self.budget.ended(self.engine)

    def gone(self) -> None:
        self.budget.forget(self.engine)


class SharedMemory(FleetMemory):
    """One budget of all models. `needs`, by model, returns the least that an engine takes on a device, by the
    model's files; the device is None before it is known."""

    def __init__(self, budget: MemoryBudget, needs: Mapping[str, Callable[[str | None], int]]) -> None:
        self._budget = budget
        self._needs = needs
        self._floors: dict[str, int] = {}
        """Least bytes by model, as engines have reported them."""
        self._estimates: dict[tuple[str, str | None], int] = {}
        self._device: str | None = None
        self._pools: dict[str, Pool] = {}

    def share_of(self, model: str, engine: str) -> EngineShare:
        return EngineShare(self._budget, _name(model, engine))

    def follow(self, model: str, pool: Pool) -> None:
        """Follow a model's engines, and reserve their memory if they are loaded at the start."""
        self._pools[model] = pool
        if pool.loaded:
            self.reserve(model)

    @property
    def budget_bytes(self) -> int | None:
        return self._budget.budget_bytes or None

    def need_bytes(self, model: str) -> int:
        pool, held = self._pools[model], dict(self._budget)
        if (ready := pool.ready) is not None:
            self._floors[model], self._device = ready.memory_floor_bytes, ready.device
        names = [_name(model, engine) for engine in pool.names]
        return sum(self._budget.need_bytes(one) if one in held else self._floor(model) for one in names)

    def reserve(self, model: str) -> None:
        for engine in self._pools[model].names:
            self._budget.reserve(_name(model, engine), self._floor(model))

    def may_load(self, model: str) -> bool:
        self.reserve(model)  # Of an engine that has been added meanwhile, too.
        return all(self._budget.may_load(_name(model, one)) for one in self._pools[model].names)

    def release(self, model: str) -> None:
        for engine in self._pools[model].names:
            self._budget.forget(_name(model, engine))

    def _floor(self, model: str) -> int:
        if (reported := self._floors.get(model)) is not None:
            return reported
        if (model, self._device) not in self._estimates:
            self._estimates[model, self._device] = self._needs[model](self._device)
        return self._estimates[model, self._device]

    def rebalance(self, now: float) -> None:
        for name, message in self._budget.rebalance(now):
            model, _, engine = name.rpartition("/")
            self._pools[model][engine].send(message)


def _name(model: str, engine: str) -> str:
    return f"{model}/{engine}"
