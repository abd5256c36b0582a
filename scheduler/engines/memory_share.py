"""What an engine gets of the memory of all models."""

from __future__ import annotations

from scheduler.shared.messages import Counters, Ready, SetMemoryLimit


class MemoryShare:
    """One engine's part of the memory of all models, over all its processes: this one has no other model
    beside it."""

    def given(self) -> SetMemoryLimit | None:
        """Return the limit that a new process is loaded with, or None if the options set it."""
        return None

    def ready(self, ready: Ready) -> None: ...
    def observe(self, counters: Counters, now: float) -> None: ...
    def ended(self) -> None:
        """Its process has ended, and another takes its place."""

    def gone(self) -> None:
        """Its process has ended, and none takes its place."""
