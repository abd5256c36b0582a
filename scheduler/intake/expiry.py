"""The task that expires requests: it sleeps until the next deadline, or until an earlier one is added."""

from __future__ import annotations

from collections.abc import Callable

import trio

from scheduler.config import IntakeConfig
from scheduler.errors import DeadlineExceeded, QueueTimeout
from scheduler.intake.deadlines import Deadlines, Limit
from scheduler.intake.system_sleep import SleepTime
from scheduler.requests.record import StreamRecord


class Expiry:
    """Owned by the service. `on_expired` is called once for each request whose deadline passed."""

    def __init__(
        self,
        config: IntakeConfig,
        on_expired: Callable[[StreamRecord, DeadlineExceeded], None],
        retry_seconds: Callable[[float], float],
        sleep: SleepTime | None = None,
    ) -> None:
        self._config = config
        self._on_expired = on_expired
        self._retry_seconds = retry_seconds
        self._deadlines = Deadlines(config, sleep)
        self._sleeps_until = 0.0
        self._earlier = trio.Event()

    def __len__(self) -> int:
        """Return how many requests are watched."""
        return len(self._deadlines)

    def watch(self, record: StreamRecord) -> None:
        """A request was queued or dispatched, or it started."""
        self._deadlines.watch(record)
        if self._deadlines.next_at < self._sleeps_until:
            self._earlier.set()

    def forget(self, record: StreamRecord) -> None:
        """A request has retired."""
        self._deadlines.forget(record)

    def woke(self) -> None:
        """The machine slept: deadlines are nearer than they were."""
        self._deadlines.woke()
        self._earlier.set()

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            self._earlier = trio.Event()
            self._sleeps_until = self._deadlines.next_at
            with trio.move_on_at(self._sleeps_until):
                await self._earlier.wait()
            for record, limit in self._deadlines.take_expired(trio.current_time()):
                self._on_expired(record, self._error(record, limit))

    def _error(self, record: StreamRecord, limit: Limit) -> DeadlineExceeded:
        place = "in the queue" if record.dispatched_at is None else "before its answer was complete"
        match limit:
            case Limit.REQUEST:
                timeout = record.prepared.request.timeout_seconds
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
