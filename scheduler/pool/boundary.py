"""What a pool is given: who listens to it, how its engines are started, what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import trio

from scheduler.errors import SchedulerError
from scheduler.link.process import EngineLauncher
from scheduler.pool.owner import MemoryShare, WholeMemory
from scheduler.requests.multiplexer import RequestObserver
from scheduler.requests.record import StreamRecord

MOST_ENGINES = 64
"""Each is a process with a model."""
Launchers = Callable[[int], EngineLauncher]
"""The launcher of the engine with this number."""


class PoolListener(Protocol):
    """The service, to its pool. Called in the task that reads a link: nothing here may wait."""

    def pump(self) -> None:
        """Something may be sent now."""
        ...

    def progressed(self, record: StreamRecord, now: float, *, started: bool) -> None: ...
    def retired(self, record: StreamRecord) -> None: ...
    def fail_queued(self, error: SchedulerError) -> None: ...


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """What all engines of a pool have in common."""

    observer: RequestObserver
    on_loading: Callable[[str, str], None] = lambda engine, stage: None
    """Called with an engine's name and the stage that it loads."""
    share_of: Callable[[str], MemoryShare] = lambda engine: WholeMemory()
    """An engine's part of the memory of all models, by its name."""
    clock: Callable[[], float] = trio.current_time
