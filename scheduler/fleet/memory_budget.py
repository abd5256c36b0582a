"""One memory budget over the engines of all models: each engine's part, which is fixed for its life.

The server does not know the device. An engine that is loaded while no other lives finds out what all may use
(`MemoryPart.whole_bytes` 0), takes its part of that, and reports both: that is the budget. If it reports
none, there is no budget, and no engine gets a part.

A part is an engine's from the moment that it is given until its process has ended and no other takes its
place: an engine that has died is loaded with it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.engine.budget.limits import part_of
from scheduler.engines.boundary import MemoryShare
from scheduler.engines.pool import Pool
from scheduler.shared.messages import MemoryPart, Ready


@dataclass(frozen=True, slots=True)
class EngineShare(MemoryShare):
    """An engine's part of one budget."""

    budget: MemoryBudget
    model: str
    engine: str

    def given(self) -> MemoryPart | None:
        return self.budget.given(self.model, self.engine)

    def ready(self, ready: Ready) -> None:
        self.budget.ready(self.model, self.engine, ready)

    def gone(self) -> None:
        self.budget.free(self.model, self.engine)


@dataclass(slots=True)
class _Model:
    """`need`: the least bytes of one of its engines, by its files, on a device; None if that is unknown."""

    need: Callable[[str | None], int]
    pool: Pool
    is_pinned: bool
    reported_bytes: int | None = None
    """The same, as an engine has reported it."""
    estimates: dict[str | None, int] = field(default_factory=dict)
    parts: dict[str, MemoryPart] = field(default_factory=dict)
    """By engine."""

    def least_bytes(self, device: str | None) -> int:
        """Return the least bytes of one of its engines."""
        if self.reported_bytes is not None:
            return self.reported_bytes
        if device not in self.estimates:
            self.estimates[device] = self.need(device)
        return self.estimates[device]


class MemoryBudget:
    """The parts of all engines. `needs`, by model, returns the least bytes of one of its engines on a device;
    the device is None before it is known."""

    def __init__(self, needs: Mapping[str, Callable[[str | None], int]]) -> None:
        self._needs = needs
        self._models: dict[str, _Model] = {}
        self._whole_bytes: int | None = None
        """0 is no limit; None means that no engine has been ready yet."""
        self._device: str | None = None

    def follow(self, model: str, pool: Pool, *, is_pinned: bool = False) -> None:
        """Have this pool's engines share the budget."""
        self._models[model] = _Model(self._needs[model], pool, is_pinned)

    def share_of(self, model: str, engine: str) -> EngineShare:
        return EngineShare(self, model, engine)

    @property
    def budget_bytes(self) -> int | None:
        """Return the budget of all models together, or None if it is unknown or unbounded."""
        return self._whole_bytes or None

    @property
    def parts(self) -> dict[tuple[str, str], int]:
        """Return the part in bytes of each engine that has one; 0 if it is still to find it out."""
        found = self._models.items()
        return {(name, one): part.limit_bytes for name, model in found for one, part in model.parts.items()}

    def need_bytes(self, model: str) -> int:
        """Return what a model holds and cannot give back, or would need at least."""
        asked = self._models[model]
        parts = [asked.parts.get(engine) for engine in asked.pool.names]
        least_bytes = asked.least_bytes(self._device)
        return sum(part.limit_bytes if part and part.whole_bytes else least_bytes for part in parts)

    def given(self, model: str, engine: str) -> MemoryPart | None:
        """Return the part that a new process is loaded with, or None if there is no limit. Where the engine
        has none, all of its model's engines that start get equal parts, at the same time."""
        asked = self._models[model]
        if engine not in asked.parts:
            if self._whole_bytes == 0 and self.parts:
                return None
            starting = [one.name for one in asked.pool if one.running and one.name not in asked.parts]
            names = {engine, *starting}
            asked.parts |= dict.fromkeys(names, self._part(asked, len(names)))
        return asked.parts[engine]

    def _part(self, asked: _Model, engines: int) -> MemoryPart:
        """Return the part of each of this number of engines, which start."""
        others = [one for one in self._models.values() if one is not asked and not one.parts]
        # Pinned ones first, then large ones: what fits beside the pinned models by its needs then also fits
        # beside their parts (`test_memory_budget.py`).
        others.sort(key=lambda one: (not one.is_pinned, -self._least_bytes_of(one, self._device)))
        held = [part for one in self._models.values() for part in one.parts.values()]
        if not held:
            beside = tuple(
                (self._least_bytes_of(one, "cpu"), self._least_bytes_of(one, "gpu")) for one in others
            )
            return MemoryPart(sharers=engines, beside=beside)
        # An engine that is to find out its part may take all.
        whole_bytes = self._whole_bytes or 0
        is_known = all(part.whole_bytes for part in held)
        free_bytes = max(0, whole_bytes - sum(part.limit_bytes for part in held)) if is_known else 0
        needs = [self._least_bytes_of(one, self._device) for one in others]
        found, fitting = part_of(free_bytes, asked.least_bytes(self._device) * engines, needs)
        return MemoryPart(found // engines, max(1, whole_bytes), len(held) + engines + fitting)

    @staticmethod
    def _least_bytes_of(model: _Model, device: str | None) -> int:
        """Return the least bytes of all of its engines."""
        return len(model.pool.names) * model.least_bytes(device)

    def ready(self, model: str, engine: str, ready: Ready) -> None:
        """Take the report of an engine that has been loaded."""
        asked = self._models[model]
        self._device, asked.reported_bytes = ready.device, ready.memory_floor_bytes
        if (part := asked.parts.get(engine)) is None:
            return
        found = MemoryPart(ready.memory_limit_bytes, ready.memory_whole_bytes, part.sharers)
        if not part.whole_bytes:
            self._whole_bytes = ready.memory_whole_bytes
            # The others find out the same.
            asked.parts = {name: one if one.whole_bytes else found for name, one in asked.parts.items()}
        asked.parts[engine] = found

    def free(self, model: str, engine: str) -> None:
        """Free the part of an engine whose process has ended, or was never started, if none is to follow."""
        self._models[model].parts.pop(engine, None)
