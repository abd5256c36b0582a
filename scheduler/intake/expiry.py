"""The deadline of each request, which is the earliest of the limits that apply in its state, and the task
that waits for the next one."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from enum import Enum, auto

import trio

from scheduler.config import IntakeConfig
from scheduler.errors import DeadlineExceeded, QueueTimeout
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


class Expiry:
    """A heap and a table. Forgotten and replaced entries stay in the heap until they reach the top, or until
    they are half of it. All but `run` is pure."""

    def __init__(self, config: IntakeConfig, retry_seconds: Callable[[float], float]) -> None:
        """`retry_seconds` returns when a request that waited too long may come again."""
        self._config = config
        self._retry_seconds = retry_seconds
        self._sleeps_until = 0.0
        self._earlier = trio.Event()
        self._heap: list[tuple[float, int]] = []
        self._watched: dict[int, tuple[float, Limit, StreamRecord]] = {}

    def __len__(self) -> int:
        """Return how many requests are watched."""
        return len(self._watched)

    def watch(self, record: StreamRecord) -> None:
        """Set the deadline for its present state; call again when it is dispatched, and when it starts."""
        self.forget(record)
        limits = self._limits(record)
        if limits:
            at, limit = min(limits, key=lambda pair: pair[0])
            self._watched[record.request_id] = (at, limit, record)
            heapq.heappush(self._heap, (at, record.request_id))
            if at < self._sleeps_until:
                self._earlier.set()

    def forget(self, record: StreamRecord) -> None:
        """A request has retired."""
        self._watched.pop(record.request_id, None)
        if len(self._heap) > 2 * len(self._watched) + 16:
            self._heap = [(at, request_id) for request_id, (at, _, _) in self._watched.items()]
            heapq.heapify(self._heap)

    @property
    def next_at(self) -> float:
        """Return when the next deadline passes; infinity if nothing is watched."""
        while self._heap and not self._is_current(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

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
        timeout = record.request.timeout_seconds
        if timeout is not None:
            limits.append((record.arrived_at + timeout, Limit.REQUEST))
        if record.state is State.QUEUED:
            if self._config.queue_seconds is not None:
                limits.append((record.queued_at + self._config.queue_seconds, Limit.QUEUE))
        elif self._config.max_running_seconds is not None and record.started_at is not None:
            limits.append((record.started_at + self._config.max_running_seconds, Limit.RUNNING))
        return limits

    async def run(self, on_expired: Callable[[StreamRecord, DeadlineExceeded], None]) -> None:
        """Call `on_expired` once for each request whose deadline passes. Never returns by itself."""
        while True:
            self._earlier = trio.Event()
            self._sleeps_until = self.next_at
            with trio.move_on_at(self._sleeps_until):
                await self._earlier.wait()
            for record, limit in self.take_expired(trio.current_time()):
                on_expired(record, self._error(record, limit))

    def _error(self, record: StreamRecord, limit: Limit) -> DeadlineExceeded:
        place = "in the queue" if record.dispatched_at is None else "before its answer was complete"
        match limit:
            case Limit.REQUEST:
                timeout = record.request.timeout_seconds
                return DeadlineExceeded(f"the request's timeout of {timeout:g} s passed {place}")
            case Limit.QUEUE:
                waited = self._config.queue_seconds
                return QueueTimeout(
                    f"the request waited in the queue for {waited:g} s, which is the limit",
                    retry_after_seconds=self._retry_seconds(trio.current_time()),
                )
            case Limit.RUNNING:
                return DeadlineExceeded(
                    f"the answer was generated for {self._config.max_running_seconds:g} s, which is the limit"
                )
