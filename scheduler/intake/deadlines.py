"""The deadline of each request: the earliest limit that applies to its state.

Pure: `now` is an argument. `expiry.py` waits for the next one. The time that the machine sleeps counts: the
heap is in continuous time (`scheduler/intake/system_sleep.py`), all times outside are trio's clock.
"""

from __future__ import annotations

import heapq
import math
from enum import Enum, auto

from scheduler.config import IntakeConfig
from scheduler.intake.system_sleep import SleepTime
from scheduler.requests.lifecycle import State
from scheduler.requests.record import StreamRecord


class Limit(Enum):
    """The limit that has passed."""

    REQUEST = auto()
    """The client's own timeout."""
    QUEUE = auto()
    """`--queue-seconds`: how long it may wait in the queue."""
    RUNNING = auto()
    """`--max-running-seconds`: how long it may have a slot."""


class Deadlines:
    """A heap and a table. Forgotten and replaced entries stay in the heap until they reach the top, or until
    they are half of it."""

    def __init__(self, config: IntakeConfig, sleep: SleepTime | None = None) -> None:
        """Without `sleep`, the machine is taken never to sleep."""
        self._config = config
        self._sleep = sleep or SleepTime()
        self._heap: list[tuple[float, int]] = []
        self._watched: dict[int, tuple[float, Limit, StreamRecord]] = {}

    def __len__(self) -> int:
        return len(self._watched)

    def watch(self, record: StreamRecord) -> None:
        """Set the deadline for its present state; call again when it is dispatched, and when it starts."""
        self.forget(record)
        limits = self._limits(record)
        if limits:
            at, limit = min(limits, key=lambda pair: pair[0])
            self._watched[record.request_id] = (at, limit, record)
            heapq.heappush(self._heap, (at, record.request_id))

    def forget(self, record: StreamRecord) -> None:
        self._watched.pop(record.request_id, None)
        if len(self._heap) > 2 * len(self._watched) + 16:
            self._heap = [(at, request_id) for request_id, (at, _, _) in self._watched.items()]
            heapq.heapify(self._heap)

    def woke(self) -> None:
        """A sleep was noticed. What came after it and before now was watched as if it had slept, too."""
        for _, _, record in list(self._watched.values()):
            self.watch(record)

    @property
    def next_at(self) -> float:
        """If the machine does not sleep. Infinity if nothing is watched."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] - self._sleep.total_seconds if self._heap else math.inf

    def take_expired(self, now: float) -> list[tuple[StreamRecord, Limit]]:
        """Return requests whose deadline has passed; they are no longer watched."""
        expired = []
        while self.next_at <= now:
            _, request_id = heapq.heappop(self._heap)
            _, limit, record = self._watched.pop(request_id)
            expired.append((record, limit))
        return expired

    def _is_current(self, at: float, request_id: int) -> bool:
        watched = self._watched.get(request_id)
        return watched is not None and watched[0] == at

    def _limits(self, record: StreamRecord) -> list[tuple[float, Limit]]:
        limits = []
        timeout = record.prepared.request.timeout_seconds
        if timeout is not None:
            limits.append((self._after(record.arrived_at, timeout), Limit.REQUEST))
        if record.state is State.QUEUED:
            if self._config.queue_seconds is not None:
                limits.append((self._after(record.queued_at, self._config.queue_seconds), Limit.QUEUE))
        elif self._config.max_running_seconds is not None and record.started_at is not None:
            limits.append((self._after(record.started_at, self._config.max_running_seconds), Limit.RUNNING))
        return limits

    def _after(self, start: float, seconds: float) -> float:
        """Return when they will have passed, in continuous time."""
        return start + seconds + self._sleep.before(start)
