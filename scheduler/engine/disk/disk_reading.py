"""What the engine's loop holds of a read from disk: asked for in one thread, fulfilled in another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from scheduler.engine.disk.block_chain import Place
from scheduler.engine.disk.block_file import Content


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """What was there and whole."""

    blocks: tuple[Content, ...] = ()
    """Consecutive, from where the read began; fewer than asked for where one was damaged or gone."""
    snapshot: Content | None = None
    """Only with all the blocks that were asked for."""


class Reading:
    """Comes to an end always: with an outcome, which after a cancel or an error is empty."""

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
        """None while it is under way. Never waits."""
        return self._outcome

    def wait(self, deadline_seconds: float) -> ReadOutcome | None:
        """As `poll`, but waits up to the deadline."""
        self._done.wait(deadline_seconds)
        return self._outcome

    def cancel(self) -> None:
        """Nobody wants it any more: it ends before the next file."""
        self.cancelled = True

    def finish(self, outcome: ReadOutcome) -> None:
        """For the reader's thread, once."""
        assert self._outcome is None, "a reading ends once"
        self._outcome = ReadOutcome() if self.cancelled else outcome
        self._done.set()
        if self._when_done is not None:
            self._when_done()
