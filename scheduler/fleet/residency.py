"""Decides which models are loaded, and which are unloaded for another one. Pure: `now` is an argument.

A requested model is loaded when its least memory is free. Where it is not, idle models are unloaded, the
least recently used first. A model that serves is never interrupted: after its turn it gets no new requests
while another model waits, and is unloaded when the requests that it has have ended. The model that has waited
longest is next, whatever it needs, so that none starves; and no model is unloaded before it has been loaded
for a while, so that two models that alternate cannot keep the machine loading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.shared.gigabytes import gigabytes


class ModelState(StrEnum):
    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    DRAINING = "draining"
    """It is unloaded when the requests that its engines have are over."""
    UNLOADING = "unloading"
    """Its processes are ending."""
    FAILED = "failed"
    """It could not be loaded. Requests are refused for a while."""


_HOLDS_MEMORY = (ModelState.LOADING, ModelState.LOADED, ModelState.DRAINING, ModelState.UNLOADING)
LEAST_LOADED_SECONDS = 10.0
"""How long an idle model stays although another one waits. It bounds the loads of a minute to six for each
model that fits."""
TURN_SECONDS = 60.0
"""The same of a model that has requests."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One model at a moment. Times are by the fleet's clock."""

    name: str
    state: ModelState
    need_bytes: int
    """Its part of the memory, or the least that it would need."""
    wanted_since: float | None
    """The time since which a request or an operator waits for it to be loaded: the arrival of its oldest
    queued request, or the operator's call."""
    requests: int
    """Number of requests that its engines have."""
    used_at: float
    """When it last had a request."""
    loaded_at: float
    pinned: bool = False
    """Only an operator unloads it."""
    idle_seconds: float | None = None
    """Unload the model after this time without a request; None disables that."""

    @property
    def idle(self) -> bool:
        return self.state is ModelState.LOADED and not self.requests and self.wanted_since is None


@dataclass(frozen=True, slots=True)
class ResidencyDecision:
    """What to do now. `unload`: end the processes of models without requests. `drain`: give these no new
    requests. `waits`: by the name of a model that cannot be loaded yet, what it waits for. `impossible`: by
    name, why no wait helps."""

    load: str | None = None
    unload: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    waits: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, str] = field(default_factory=dict)


def decide(models: Sequence[Standing], budget_bytes: int | None, now: float) -> ResidencyDecision:
    """Decide what to load and unload. `budget_bytes` bounds all models together; None is no bound."""
    unload = [model.name for model in models if _is_over(model, now)]
    waits: dict[str, str] = {}
    impossible: dict[str, str] = {}
    drain: list[str] = []
    load: str | None = None
    served = False
    loading = [model.name for model in models if model.state is ModelState.LOADING]
    for wanted in _wanted(models):
        if (reason := _never_fits(wanted, models, budget_bytes)) is not None:
            impossible[wanted.name] = reason
        elif served or loading:
            waits[wanted.name] = f"{(loading or [load or next(iter(waits))])[0]} is loaded first"
        elif any(model.state is ModelState.UNLOADING for model in models):
            # Its processes may use their part to their end, which is near.
            served = True
            waits[wanted.name] = _waits_for(models, unload, drain)
        else:
            served = True
            free = None if budget_bytes is None else budget_bytes - _held_bytes(models)
            if free is None or wanted.need_bytes <= free:
                load = wanted.name
                continue
            missing = wanted.need_bytes - free - _coming_bytes(models, unload)
            idle, serving = _victims(models, unload, missing, now)
            unload += idle
            drain += serving
            waits[wanted.name] = _waits_for(models, unload, drain)
    return ResidencyDecision(load, tuple(unload), tuple(drain), waits, impossible)


def _is_over(model: Standing, now: float) -> bool:
    if model.state is ModelState.DRAINING:
        return not model.requests
    if not model.idle or model.pinned or model.idle_seconds is None:
        return False
    return now - max(model.used_at, model.loaded_at) >= model.idle_seconds


def _wanted(models: Sequence[Standing]) -> list[Standing]:
    """Return the models to load, the one that has waited longest first."""
    waiting = [
        (model.wanted_since, number, model)
        for number, model in enumerate(models)
        if model.state is ModelState.UNLOADED and model.wanted_since is not None
    ]
    return [model for *_, model in sorted(waiting, key=lambda one: one[:2])]


def _held_bytes(models: Sequence[Standing]) -> int:
    return sum(model.need_bytes for model in models if model.state in _HOLDS_MEMORY)


def _coming_bytes(models: Sequence[Standing], unload: Sequence[str]) -> int:
    """Return what will be free without a further decision."""
    leaving = (ModelState.DRAINING, ModelState.UNLOADING)
    return sum(model.need_bytes for model in models if model.state in leaving or model.name in unload)


def _never_fits(wanted: Standing, models: Sequence[Standing], budget_bytes: int | None) -> str | None:
    if budget_bytes is None:
        return None
    pinned = [model for model in models if model.pinned and model.state in _HOLDS_MEMORY]
    left = budget_bytes - sum(model.need_bytes for model in pinned)
    if wanted.need_bytes <= left:
        return None
    beside = f" beside {', '.join(model.name for model in pinned)}" if pinned else ""
    return (
        f"the model {wanted.name!r} needs at least {gigabytes(wanted.need_bytes, 3)},"
        f" and {gigabytes(max(0, left), 3)} are left{beside}"
    )


def _victims(
    models: Sequence[Standing], unload: Sequence[str], missing: int, now: float
) -> tuple[list[str], list[str]]:
    """Return which models to unload and which to drain for the missing bytes: as few as suffice, or none."""
    if missing <= 0:
        return [], []
    left = [
        model
        for model in models
        if model.state is ModelState.LOADED and not model.pinned and model.name not in unload
    ]
    idle = sorted(
        (one for one in left if one.idle and now - one.loaded_at >= LEAST_LOADED_SECONDS),
        key=lambda one: one.used_at,
    )
    serving = sorted(
        (one for one in left if not one.idle and now - one.loaded_at >= TURN_SECONDS),
        key=lambda one: one.loaded_at,
    )
    chosen: list[Standing] = []
    for model in (*idle, *serving):
        if missing > 0:
            chosen.append(model)
            missing -= model.need_bytes
    if missing > 0:
        return [], []
    return [one.name for one in chosen if one.idle], [one.name for one in chosen if not one.idle]


def _waits_for(models: Sequence[Standing], unload: Sequence[str], drain: Sequence[str]) -> str:
    """Return what the client waits for: the models that have the memory."""
    going = [
        model.name
        for model in models
        if model.name in (*unload, *drain) or model.state in (ModelState.DRAINING, ModelState.UNLOADING)
    ]
    if going:
        return f"memory, until {', '.join(going)} is unloaded"
    serving = [model.name for model in models if model.state is ModelState.LOADED]
    return f"memory, which {', '.join(serving)} has"
