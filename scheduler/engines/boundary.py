"""What a pool is given: how its engines are started, and each one's part of the memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.processes.process import EngineLauncher
from scheduler.shared.messages import MemoryPart, Ready

MOST_ENGINES = 64
"""Bound on a pool's engines: each is a process with a model."""
Launchers = Callable[[int], EngineLauncher]
"""The launcher of the engine with this number."""


class MemoryShare:
    """One engine's part of the memory of all models, over all its processes. This class is for a server with
    one model: nothing is divided."""

    def given(self) -> MemoryPart | None:
        """Return the part that a new process is loaded with, or None if nothing is divided."""
        return None

    def ready(self, ready: Ready) -> None: ...
    def gone(self) -> None:
        """Called when its process has ended, and none takes its place."""


@dataclass(frozen=True, slots=True)
class EngineProvision:
    """How a model's engines are started, what memory they get, and who hears of their loading."""

    launcher_of: Launchers
    share_of: Callable[[str], MemoryShare] = lambda engine: MemoryShare()
    """An engine's part of the memory of all models, by its name."""
    on_loading: Callable[[str, str], None] = lambda engine, stage: None
    """Called with an engine's name and the stage that it loads; "" when it is ready."""
