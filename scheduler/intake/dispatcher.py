"""Moves requests from the queue to the engine while it has room for them.

No task of its own: it acts when something has changed (a request came, one retired, the engine became
ready), which is the only time that it can have something to do.
"""

from __future__ import annotations

from scheduler.intake.queue import IntakeQueue
from scheduler.streams.multiplexer import Multiplexer
from scheduler.streams.record import StreamRecord


class Dispatcher:
    """`credits` is how many requests the engine may hold: its slots and a small lookahead."""

    def __init__(self, queue: IntakeQueue, multiplexer: Multiplexer, credits: int) -> None:
        self._queue = queue
        self._multiplexer = multiplexer
        self.credits = credits
        self.engine_ready = False

    @property
    def has_room(self) -> bool:
        """Whether a request that comes now goes straight to the engine."""
        return self.engine_ready and len(self._multiplexer) < self.credits

    def pump(self, now: float) -> list[StreamRecord]:
        """Submit as many as there are credits for; these are they."""
        submitted = []
        while self.has_room and len(self._queue):
            record = self._queue.pop(now)
            self._multiplexer.submit(record)
            submitted.append(record)
        return submitted
