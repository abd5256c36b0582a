"""Accepted requests that the engine does not have yet: the queue's bounds, and the cost of each request.

Pure: no clock, no I/O. `fair_queue.py` decides the order; here are the bounds, and the estimates that a
ticket is made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scheduler.config import IntakeConfig
from scheduler.intake.fair_queue import FairQueue
from scheduler.intake.service_ledger import Ticket
from scheduler.prefix_estimate import PrefixEstimate
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import QUEUE, Requests
from scheduler.statistics import QueueStatistics

_FIRST_OUTPUT_TOKENS = 256.0
_SMOOTHING = 0.05
"""Weight of each new answer's length. The first twenty are averaged instead, to replace the guess."""


class IntakeQueue:
    """Admission checks the bounds before a push (`yielding`, `room_of`, `has_token_room`), and says what must
    leave for it (`surplus`)."""

    def __init__(self, config: IntakeConfig, requests: Requests) -> None:
        self._config = config
        self._requests = requests
        self._waiting = requests.at(QUEUE)
        self.fair = FairQueue(config.fairness)
        self._dispatched: dict[int, Ticket] = {}
        self._per_tenant: dict[str, int] = {}
        self._prompt_tokens = 0
        self._prefixes = PrefixEstimate()
        self._output_tokens = _FIRST_OUTPUT_TOKENS
        self._answers = 0

    @property
    def room(self) -> int:
        """Return how many more requests may enter."""
        return self._config.max_queue - len(self._waiting)

    @property
    def most_per_client(self) -> int:
        """Return how many requests one client may queue if the queue is empty."""
        per_tenant = self._config.max_queue_per_tenant
        return self._config.max_queue if per_tenant is None else min(self._config.max_queue, per_tenant)

    @property
    def prompt_tokens(self) -> int:
        """Return the prompt tokens of all waiting requests."""
        return self._prompt_tokens

    @property
    def tenants(self) -> int:
        """Return how many tenants have requests waiting."""
        return len(self._per_tenant)

    def expected_tokens(self, record: StreamRecord) -> float:
        """Return the expected length of a request's answer: the recent mean, if it may be that long."""
        return min(record.submit.max_tokens, self._output_tokens)

    def waiting_of(self, tenant: str) -> int:
        return self._per_tenant.get(tenant, 0)

    def room_of(self, tenant: str) -> int | None:
        """Return how many more of this tenant may enter; None if tenants have no bound."""
        limit = self._config.max_queue_per_tenant
        return None if limit is None else limit - self.waiting_of(tenant)

    def yielding(
        self, tenant: str, requests: int, preparing: Mapping[str, int] | None = None, engine_room: int = 0
    ) -> Counter[str] | None:
        """Return how many requests of which tenants must leave for this number of one: in turn one of the
        tenant with most. None if there is no room: nobody yields to a tenant that would have as many.
        `preparing`: requests that count as well, but for `engine_room` of them."""
        coming, yielding = Counter(preparing), Counter[str]()
        missing = requests - self.room + max(0, coming.total() - engine_room)
        held = Counter(self._per_tenant) + coming if missing > 0 else coming
        own = held[tenant] + requests
        for _ in range(missing):
            name = max(held, key=held.__getitem__, default="")
            if held[name] <= own:
                return None
            held[name] -= 1
            yielding[name] += 1
        return yielding

    def surplus(self, tenant: str, requests: int) -> list[StreamRecord]:
        """Return the requests that leave a full queue for these: the newest of `yielding`."""
        left = self.yielding(tenant, requests)
        assert left is not None, "admission let a request into a full queue"
        leaving = list[StreamRecord]()
        for record in reversed([*self._waiting.values()]) if left else ():
            if left[name := record.request.tenant]:
                left[name] -= 1
                leaving.append(record)
        return leaving

    def has_token_room(self, prompt_tokens: int) -> bool:
        """Return whether this many prompt tokens may enter. An empty queue takes any prompt: a bound below
        the model's context must not exclude long prompts forever."""
        limit = self._config.max_queued_tokens
        return limit is None or not self._waiting or self._prompt_tokens + prompt_tokens <= limit

    def push(self, record: StreamRecord, now: float) -> None:
        """Accept a request."""
        assert self.room > 0, "admission let a request into a full queue"
        record.queued_at = now
        request, prompt_tokens = record.request, len(record.submit.prompt)
        # First, so that an exception here leaves the tables below unchanged.
        self.fair.push(
            Ticket(
                request_id=record.request_id,
                tenant=request.tenant,
                session=request.session or "",
                priority=request.priority,
                prompt_tokens=prompt_tokens,
                uncached_tokens=prompt_tokens
                - self._prefixes.cached_tokens(record.prepared.prefix_blocks, prompt_tokens),
                output_tokens=round(self.expected_tokens(record)),
                queued_at=now,
            )
        )
        self._requests.accept(record)
        self._per_tenant[request.tenant] = self.waiting_of(request.tenant) + 1
        self._prompt_tokens += prompt_tokens

    def pop(self, now: float) -> StreamRecord:
        """Return the next request, which the caller dispatches. Its charge stays open until `charge_actual`.
        Raise KeyError when empty."""
        ticket = self.fair.pop(now)
        self._dispatched[ticket.request_id] = ticket
        self._take_out(ticket)
        return self._waiting[ticket.request_id]

    def left(self, record: StreamRecord, now: float) -> None:
        """Take note that a request has left from any position without being popped."""
        if (ticket := self.fair.remove(record.request_id, now)) is not None:
            self._take_out(ticket)

    def _take_out(self, ticket: Ticket) -> None:
        left = self._per_tenant[ticket.tenant] - 1
        if left:
            self._per_tenant[ticket.tenant] = left
        else:
            del self._per_tenant[ticket.tenant]
        self._prompt_tokens -= ticket.prompt_tokens

    def observe(self, record: StreamRecord, now: float) -> None:
        """The engine made progress with it: charge what it costs beyond the estimate."""
        if (ticket := self._dispatched.get(record.request_id)) is not None:
            self.fair.observe(ticket, record.uncached_tokens, record.output_tokens, now)

    def charge_actual(self, record: StreamRecord, now: float) -> None:
        """It has left the engine: replace the estimate by its actual cost. Other requests are not
        affected."""
        ticket = self._dispatched.pop(record.request_id, None)
        if ticket is None:
            return
        self.fair.charge_actual(ticket, record.uncached_tokens, record.output_tokens, now)
        if record.prefilled_tokens >= len(record.submit.prompt):
            self._prefixes.computed(record.prepared.prefix_blocks)
        if record.output_tokens:
            self._answers += 1
            weight = max(_SMOOTHING, 1 / self._answers)
            self._output_tokens += weight * (record.output_tokens - self._output_tokens)

    @property
    def oldest_at(self) -> float | None:
        """Return when the oldest waiting request was queued; None if none waits."""
        # Insertion order is arrival order.
        return next((record.queued_at for record in self._waiting.values()), None)

    def oldest_seconds(self, now: float) -> float:
        """Return how long the oldest request has waited; 0 if none waits."""
        return 0.0 if (oldest_at := self.oldest_at) is None else now - oldest_at

    def statistics(self, now: float) -> QueueStatistics:
        return QueueStatistics(
            requests=len(self._waiting),
            prompt_tokens=self._prompt_tokens,
            oldest_seconds=self.oldest_seconds(now),
            bound_requests=self._config.max_queue,
            bound_prompt_tokens=self._config.max_queued_tokens,
            bound_requests_per_tenant=self._config.max_queue_per_tenant,
            flows=self.fair.statistics(now),
        )

    def __len__(self) -> int:
        return len(self._waiting)
