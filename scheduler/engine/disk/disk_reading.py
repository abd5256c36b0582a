"""A read from disk: requested by the engine's thread, performed by the reader thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.engine.disk.block_chain import Place
from scheduler.engine.disk.block_file import Content


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What was read and was intact."""

    blocks: tuple[Content, ...] = ()
    """Consecutive, from the start of the read; fewer than requested if one was damaged or missing."""
    snapshot: Content | None = None
    """The snapshot, if all requested blocks were found."""


class DiskRead:
    """One read. It always ends with an outcome, which is empty after a cancel or an error."""

    def __init__(
        self, blocks: tuple[Place, ...], snapshot: Place | None, when_done: Callable[[], None] | None
    ) -> None:
        self.blocks = blocks
        self.snapshot = snapshot
        self.cancelled = False
        self._when_done = when_done
        self._outcome: ReadOutcome | None = None
        self._done = threading.Event()

    def poll(self) -> ReadOutcome | None:
        """Return the outcome, or None while the read is under way. Never waits."""
        return self._outcome

    def wait(self, deadline_seconds: float) -> ReadOutcome | None:
        """Do the same as `poll`, but wait up to the deadline."""
        self._done.wait(deadline_seconds)
        return self._outcome

    def cancel(self) -> None:
        """End the read before its next file."""
        self.cancelled = True

    def finish(self, outcome: ReadOutcome) -> None:
        """Called once, by the reader's thread."""
        assert self._outcome is None, "a reading ends once"
        self._outcome = ReadOutcome() if self.cancelled else outcome
        self._done.set()
        if self._when_done is not None:
            self._when_done()
