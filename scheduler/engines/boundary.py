"""What a pool is given: how its engines are started, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import trio

from scheduler.config import SchedulerConfig
from scheduler.engines.memory_share import MemoryShare
from scheduler.processes.process import EngineLauncher
from scheduler.requests.multiplexer import RequestObserver
from scheduler.telemetry.metrics import ModelMetrics

MOST_ENGINES = 64
"""Each is a process with a model."""
Launchers = Callable[[int], EngineLauncher]
"""The launcher of the engine with this number."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What a scheduler gives to all engines of its pool."""

    config: SchedulerConfig
    metrics: ModelMetrics
    observer: RequestObserver
    on_loading: Callable[[str, str], None] = lambda engine, stage: None
    """Called with an engine's name and the stage that it loads."""
    share_of: Callable[[str], MemoryShare] = lambda engine: MemoryShare()
    """An engine's part of the memory of all models, by its name."""
    clock: Callable[[], float] = trio.current_time
