"""Report several engines as one: add the numbers of their reports, join the lists, and choose a state for
all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import TypeVar

import msgspec

from scheduler.engines.engine import Engine
from scheduler.shared.counters import DiskCounters
from scheduler.shared.figures import plus
from scheduler.shared.messages import Inspection, Ready
from scheduler.shared.reports import CacheReport
from scheduler.statistics import EngineCondition, EngineStatistics

_R = TypeVar("_R", CacheReport, DiskCounters)
_BEST_FIRST = (
    EngineCondition.READY,
    EngineCondition.QUARANTINE,
    EngineCondition.STARTING,
    EngineCondition.RESTARTING,
    EngineCondition.UNLOADED,
    EngineCondition.FAILED,
)


def first_ready(engines: Iterable[Engine]) -> Ready | None:
    """Return what the first engine that is ready has reported; None if none is."""
    return next((engine.process.ready for engine in engines if engine.process is not None), None)


def all_as_one(engines: Iterable[Engine]) -> EngineStatistics:
    """Return one state for all engines: ready if one engine is, with the death of the one that died last.
    Without engines it is starting, for a pool waits for its first one."""
    engines = list(engines)
    if not engines:
        return EngineStatistics(EngineCondition.STARTING, 0, 0, None, None)
    died = max(engines, key=lambda engine: engine.lost_at).supervisor
    return EngineStatistics(
        condition=min((engine.condition for engine in engines), key=_BEST_FIRST.index),
        restarts=sum(engine.supervisor.restarts for engine in engines),
        failed_starts=min(engine.supervisor.failed_starts for engine in engines),
        last_death=died.last_death,
        ready=first_ready(engines),
        death_cause=died.death_cause,
    )


def stalled_seconds(engines: Iterable[Engine], now: float) -> float:
    """Return the least time of all engines that have work: if one makes progress, the pool is alive."""
    return min((one.stalled_seconds(now) for one in engines if one.ready and one.requests), default=0.0)


def last_step_seconds(engines: Iterable[Engine], now: float) -> float | None:
    """Return the age of the latest step of any engine, or None before the first step."""
    ages = [age for one in engines if (age := one.last_step_seconds(now)) is not None]
    return min(ages, default=None)


def together(inspections: Iterable[Inspection], top: int) -> Inspection:
    """Return the sum of the inspections. It has those `top` shared prefixes
    that have the most cached continuations."""
    first, *others = inspections
    if not others:
        return first
    everyone = (first, *others)
    cache = _added([one.cache for one in everyone if one.cache is not None])
    if cache is not None:
        best = sorted(cache.shared_prefixes, key=lambda prefix: prefix.references, reverse=True)[:top]
        cache = msgspec.structs.replace(cache, shared_prefixes=best)
    return msgspec.structs.replace(
        first,
        freed_bytes=sum(one.freed_bytes for one in everyone),
        cache=cache,
        disk=_added([one.disk for one in everyone if one.disk is not None]),
    )


def _added(reports: Sequence[_R]) -> _R | None:
    return reduce(plus, reports) if reports else None
