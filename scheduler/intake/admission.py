"""Admission: whether a request may enter the queue, and if not, when to retry.

Pure: `now` is an argument.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scheduler.errors import Draining, InvalidRequest, QueueFull, TenantLimit, Unavailable
from scheduler.intake.drain_rate import DrainRate
from scheduler.intake.queue import IntakeQueue
from scheduler.request import GenerationRequest

_BLOCKED_RETRY_SECONDS = 10.0


class Admission:
    """Decides which requests enter the queue."""

    def __init__(self, queue: IntakeQueue) -> None:
        self.rate = DrainRate()
        self._queue = queue
        self._preparing: Counter[str] = Counter()
        self._draining = False
        self._blocked: str | None = None
        self._blocked_until = math.inf

    @property
    def draining(self) -> bool:
        return self._draining

    def blocked(self, now: float) -> str | None:
        """Return why admission is closed, or None if it is open."""
        return self._blocked if now < self._blocked_until else None

    def close(self) -> None:
        """Close admission: the service is shutting down."""
        self._draining = True

    def block(self, reason: str, until: float = math.inf) -> None:
        """Close admission until `until` or `unblock`."""
        self._blocked = reason
        self._blocked_until = until

    def unblock(self) -> None:
        self._blocked = None

    @property
    def tokenizing(self) -> Mapping[str, int]:
        """Return requests in `preparing`, by tenant."""
        return self._preparing

    @contextmanager
    def preparing(
        self, request: GenerationRequest, now: float, engine_room: int, requests: int = 1
    ) -> Iterator[None]:
        """Check a request, and count it as waiting while its prompt is tokenized and its grammar compiled, so
        that the queue's bounds also bound this work; as many requests as the engine has room for do not
        count.

        Raise what `check` does.
        """
        self.check(request, now, requests, engine_room=engine_room)
        tenant = request.tenant
        self._preparing[tenant] += requests
        try:
            yield
        finally:
            self._preparing[tenant] -= requests
            if not self._preparing[tenant]:
                del self._preparing[tenant]

    def check(
        self, request: GenerationRequest, now: float, requests: int = 1, *, engine_room: int | None = None
    ) -> None:
        """Run the checks that need no token count. `requests` more must fit into the queue, or others yield
        to them. `engine_room`: how many can go straight to the engine. Without it, requests in preparation do
        not count.

        Raise Draining, Unavailable, TenantLimit or QueueFull; InvalidRequest for more than the queue holds.
        """
        preparing: Counter[str] = Counter() if engine_room is None else self._preparing
        room = engine_room or 0
        if self._draining:
            raise Draining("the server is shutting down", retry_after_seconds=self.rate.seconds_until(1, now))
        if (reason := self.blocked(now)) is not None:
            raise Unavailable(reason, retry_after_seconds=self.unblock_seconds(now))
        if requests > (most := self._queue.most_per_client):
            # Not QueueFull: a retry would not help.
            raise InvalidRequest(f"n={requests} exceeds the queue bound of {most}", param="n")
        # The tenant's bound first: if both are reached, it is the one that this client can act on.
        self._check_tenant(request.tenant, now, requests, max(0, preparing[request.tenant] - room))
        if self._queue.yielding(request.tenant, requests, preparing, room) is None:
            waiting = len(self._queue) + max(0, preparing.total() - room)
            raise self.overload(f"{waiting} requests are waiting", now)

    def overload(self, why: str, now: float) -> QueueFull:
        """Return the error of a request that a full queue refuses, or drops for another tenant's."""
        return QueueFull(
            f"The server is overloaded: the queue is full ({why})",
            retry_after_seconds=self.retry_seconds(now),
        )

    def check_prepared(
        self, request: GenerationRequest, prompt_tokens: int, now: float, requests: int = 1
    ) -> None:
        """Run all checks, for a prompt of known length. Raise what `check` does."""
        self.check(request, now, requests)
        if not self._queue.has_token_room(prompt_tokens):
            waiting = self._queue.prompt_tokens
            raise self.overload(
                f"{waiting} prompt tokens are waiting, and {prompt_tokens} more do not fit", now
            )

    def unblock_seconds(self, now: float) -> float:
        """Return in how many seconds to retry: a whole number, or a guess if the end of the block is not
        known."""
        left = self._blocked_until - now
        return float(max(1, math.ceil(left))) if math.isfinite(left) else _BLOCKED_RETRY_SECONDS

    def _check_tenant(self, tenant: str, now: float, requests: int, in_preparation: int) -> None:
        room = self._queue.room_of(tenant)
        if room is not None and room - in_preparation < requests:
            waiting = self._queue.waiting_of(tenant) + in_preparation
            # Only one departure in `tenants` is this tenant's.
            departures = max(1, waiting // 8) * max(1, self._queue.tenants)
            raise TenantLimit(
                f"{waiting} requests of this tenant are waiting, its bound",
                retry_after_seconds=self.rate.seconds_until(departures, now),
            )

    def retry_seconds(self, now: float) -> float:
        """Return in how many seconds there will be room for another request."""
        # After an eighth of the queue: a client that retries then finds room, not a race for one place.
        return self.rate.seconds_until(max(1, len(self._queue) // 8), now)
