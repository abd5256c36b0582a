"""Send requests to the engine while it has room: those to resume first, then the queue's.

It has no task: the service calls it when a request arrives or retires, or the engine becomes ready.
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
        """Whether a request that arrives now goes straight to the engine."""
        room = self.engine_ready and len(self._multiplexer) < self.credits
        # New requests on board would be further suspects if the engine dies again.
        return room and not self._multiplexer.awaiting_engine

    @property
    def room(self) -> int:
        """Return how many requests that arrive now go straight to the engine."""
        return self.credits - len(self._multiplexer) if self.has_room else 0

    def pump(self, now: float) -> list[StreamRecord]:
        """Resume requests that await an engine (they have credits and are charged already), then submit
        queued ones while there are credits. Return the latter."""
        if self.engine_ready and self._multiplexer.awaiting_engine:
            for record in to_resume(self._multiplexer, self._slots):
                self._multiplexer.resubmit(record)
        submitted = []
        while self.has_room and len(self._queue):
            record = self._queue.pop(now)
            self._multiplexer.submit(record)
            submitted.append(record)
        return submitted
