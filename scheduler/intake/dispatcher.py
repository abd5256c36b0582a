"""Moves requests to the engine while it has room: what its predecessor left over, then the queue's.

No task of its own: it acts when something has changed (a request came, one retired, the engine became
ready), which is the only time that it can have something to do.
"""

from __future__ import annotations

from scheduler.intake.queue import IntakeQueue
from scheduler.recovery.poison import to_resume
from scheduler.requests.multiplexer import Multiplexer
from scheduler.requests.record import StreamRecord


class Dispatcher:
    """`credits` is how many requests the engine may hold: its `slots` and a small lookahead."""

    def __init__(
        self, queue: IntakeQueue, multiplexer: Multiplexer, credits: int, slots: int | None = None
    ) -> None:
        self._queue = queue
        self._multiplexer = multiplexer
        self.credits = credits
        self._slots = credits if slots is None else slots
        self.engine_ready = False

    @property
    def has_room(self) -> bool:
        """Whether a request that comes now goes straight to the engine."""
        room = self.engine_ready and len(self._multiplexer) < self.credits
        # Newcomers would blur who is to blame for another death.
        return room and not self._multiplexer.awaiting_engine

    @property
    def room(self) -> int:
        """How many requests that come now go straight to the engine."""
        return self.credits - len(self._multiplexer) if self.has_room else 0

    def pump(self, now: float) -> list[StreamRecord]:
        """Submit as many of the queue's as there are credits for; these are they. Before them goes what an
        engine's death has left over: it has its place in the credits, and was charged for."""
        if self.engine_ready and self._multiplexer.awaiting_engine:
            for record in to_resume(self._multiplexer, self._slots):
                self._multiplexer.resubmit(record)
        submitted = []
        while self.has_room and len(self._queue):
            record = self._queue.pop(now)
            self._multiplexer.submit(record)
            submitted.append(record)
        return submitted
