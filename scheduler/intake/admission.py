"""Whether a request may enter the queue at all, and if not, when to come back.

Pure: `now` is an argument.
"""

from __future__ import annotations

import math

from scheduler.errors import Draining, QueueFull, Unavailable
from scheduler.intake.queue import IntakeQueue

_SMOOTHING = 0.2
_FIRST_GUESS_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0
_BLOCKED_RETRY_SECONDS = 10.0


class DrainRate:
    """How fast requests leave, as a smoothed gap between two departures."""

    def __init__(self) -> None:
        self._gap_seconds = _FIRST_GUESS_SECONDS
        self._last_departure: float | None = None

    def resume(self) -> None:
        """Work begins after a pause, and the pause says nothing of how fast requests leave."""
        self._last_departure = None

    def departed(self, now: float) -> None:
        if self._last_departure is not None:
            gap = now - self._last_departure
            self._gap_seconds += _SMOOTHING * (gap - self._gap_seconds)
        self._last_departure = now

    def seconds_until(self, departures: int) -> float:
        """A whole number of seconds, at least 1: what a `Retry-After` header can carry."""
        return float(math.ceil(min(max(departures * self._gap_seconds, 1.0), _LONGEST_RETRY_SECONDS)))


class Admission:
    """The gate in front of the queue."""

    def __init__(self, queue: IntakeQueue) -> None:
        self._queue = queue
        self._rate = DrainRate()
        self._draining = False
        self._blocked: str | None = None

    @property
    def draining(self) -> bool:
        return self._draining

    def close(self) -> None:
        """From now on nothing is admitted: the service is shutting down."""
        self._draining = True

    def block(self, reason: str) -> None:
        """Admit nothing until `unblock`: what is queued could wait for ever."""
        self._blocked = reason

    def unblock(self) -> None:
        self._blocked = None

    def resume(self) -> None:
        self._rate.resume()

    def departed(self, now: float) -> None:
        self._rate.departed(now)

    def check(self, requests: int = 1) -> None:
        """Raises Draining, Unavailable or QueueFull; returns where so many more may enter now."""
        if self._draining:
            raise Draining("the server is shutting down", retry_after_seconds=self._rate.seconds_until(1))
        if self._blocked is not None:
            raise Unavailable(self._blocked, retry_after_seconds=_BLOCKED_RETRY_SECONDS)
        if self._queue.room < requests:
            # An eighth of the queue ahead: a client that waits so long finds room, not a race for one place.
            wait = self._rate.seconds_until(max(1, len(self._queue) // 8))
            raise QueueFull(
                f"the queue is full ({len(self._queue)} requests are waiting)", retry_after_seconds=wait
            )
