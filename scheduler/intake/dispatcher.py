"""Moves requests from the queue to the engine while it has room for them.

No task of its own: it acts when something has changed (a request came, one retired, the engine became
ready), which is the only time that it can have something to do.
"""

from __future__ import annotations

from scheduler.intake.queue import IntakeQueue
from scheduler.streams.multiplexer import Multiplexer


class Dispatcher:
    """`credits` is how many requests the engine may hold: its slots and a small lookahead."""

    def __init__(self, queue: IntakeQueue, multiplexer: Multiplexer, credits: int) -> None:
        self._queue = queue
        self._multiplexer = multiplexer
        self._credits = credits
        self.engine_ready = False

    def pump(self) -> None:
        """Submit as many as there are credits for."""
        while self.engine_ready and len(self._queue) and len(self._multiplexer) < self._credits:
            self._multiplexer.submit(self._queue.pop())
