"""Admission, the one door to the queue: whether a request may enter, who leaves for it, or when to retry.

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
from scheduler.requests.record import StreamRecord

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
        """Count a request as waiting while its prompt is tokenized and its grammar compiled, so that the
        queue's bounds also bound this work; as many requests as the engine has room for do not count.

        Raise what `admit` does, which decides again: others are let in meanwhile.
        """
        self._check(request.tenant, now, requests, self._preparing, engine_room)
        tenant = request.tenant
        self._preparing[tenant] += requests
        try:
            yield
        finally:
            self._preparing[tenant] -= requests
            if not self._preparing[tenant]:
                del self._preparing[tenant]

    def admit(
        self, request: GenerationRequest, now: float, requests: int = 1, *, prompt_tokens: int
    ) -> list[StreamRecord]:
        """Let `requests` like this one in, whose prompts have so many tokens. Return those that leave a full
        queue for them: the newest of the tenants with most.

        Raise Draining, Unavailable, TenantLimit or QueueFull; InvalidRequest for more than the queue holds.
        """
        self._check(request.tenant, now, requests, Counter(), 0)
        if not self._queue.has_token_room(prompt_tokens):
            waiting = self._queue.prompt_tokens
            raise self.overload(
                f"{waiting} prompt tokens are waiting, and {prompt_tokens} more do not fit", now
            )
        return self._queue.surplus(request.tenant, requests)

    def _check(
        self, tenant: str, now: float, requests: int, preparing: Mapping[str, int], engine_room: int
    ) -> None:
        """`preparing`: requests that count as waiting, but for `engine_room` of them."""
        if self._draining:
            raise Draining("the server is shutting down", retry_after_seconds=self.rate.seconds_until(1, now))
        if (reason := self.blocked(now)) is not None:
            raise Unavailable(reason, retry_after_seconds=self.unblock_seconds(now))
        if requests > (most := self._queue.most_per_client):
            # Not QueueFull: a retry would not help.
            raise InvalidRequest(f"n={requests} exceeds the queue bound of {most}", param="n")
        # The tenant's bound first: if both are reached, it is the one that this client can act on.
        self._check_tenant(tenant, now, requests, max(0, preparing.get(tenant, 0) - engine_room))
        if self._queue.yielding(tenant, requests, preparing, engine_room) is None:
            waiting = len(self._queue) + max(0, sum(preparing.values()) - engine_room)
            raise self.overload(f"{waiting} requests are waiting", now)

    def overload(self, why: str, now: float) -> QueueFull:
        """Return the error of a request that a full queue refuses, or drops for another tenant's."""
        return QueueFull(
            f"The server is overloaded: the queue is full ({why})",
            retry_after_seconds=self.retry_seconds(now),
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
