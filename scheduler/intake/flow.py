"""Backlogged flows of one level (tenants, or one tenant's sessions), and which of them is served next."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from scheduler.intake.service_ledger import Account, Contenders, Ticket

SMALLEST_TOKENS = 256
"""Prompts with fewer tokens to compute count as equal: a request's fixed cost outweighs the difference."""
LARGEST_TOKENS = 32768
_MIN_WAIT_SECONDS = 0.001
"""Added to every wait, or all requests that arrive together would have response ratio 0."""


@dataclass(slots=True, eq=False)
class Flow:
    """Waiting requests that share one account. `waiting_since` is when the flow was last served, or when it
    became backlogged if that was later."""

    account: Account
    waiting_since: float
    length: int = 0


@dataclass(slots=True, eq=False)
class SessionFlow(Flow):
    """Requests of one session, by highest response ratio: seconds waited / tokens to compute. Likely prefix
    hits go first, and a cold request's ratio grows until it is the highest.

    Requests are kept in FIFO queues by size class, a power of two of tokens each. The head of such a queue
    has its highest ratio, so `choose` compares one request for each size class. No request is overtaken by
    more than `window` - 1 later arrivals.
    """

    size_classes: dict[int, OrderedDict[int, tuple[int, Ticket]]] = field(default_factory=dict)
    arrivals: int = 0

    def push(self, ticket: Ticket) -> None:
        queue = self.size_classes.setdefault(_size_class(ticket), OrderedDict())
        queue[ticket.request_id] = (self.arrivals, ticket)
        self.arrivals += 1
        self.length += 1

    def remove(self, ticket: Ticket) -> None:
        queue = self.size_classes[_size_class(ticket)]
        del queue[ticket.request_id]
        if not queue:
            del self.size_classes[_size_class(ticket)]
        self.length -= 1

    def choose(self, window: int, now: float) -> Ticket:
        heads = [(size, *next(iter(queue.values()))) for size, queue in self.size_classes.items()]
        oldest = min(arrival for _, arrival, _ in heads)

        def response_ratio(head: tuple[int, int, Ticket]) -> tuple[float, int]:
            size, arrival, ticket = head
            return (now - ticket.queued_at + _MIN_WAIT_SECONDS) / size, -arrival

        return max((head for head in heads if head[1] < oldest + window), key=response_ratio)[2]

    def __iter__(self) -> Iterator[Ticket]:
        for queue in self.size_classes.values():
            for _, ticket in queue.values():
                yield ticket


def _size_class(ticket: Ticket) -> int:
    clipped = min(max(ticket.uncached_tokens, SMALLEST_TOKENS), LARGEST_TOKENS)
    return 1 << (clipped.bit_length() - 1)


@dataclass(slots=True, eq=False)
class TenantFlow(Flow):
    """A tenant's backlogged sessions. `length` counts requests, of all sessions."""

    sessions: FlowLevel[SessionFlow] = field(default_factory=lambda: FlowLevel())


_F = TypeVar("_F", SessionFlow, TenantFlow)


class FlowLevel(Generic[_F]):
    """Flows that compete with each other. The flow with the least attained service is served next, unless
    one has waited for `patience_seconds`: overdue flows go first, the longest waiting before the others.

    A flow is therefore served within `patience_seconds` and one request of each other flow, even while
    newcomers with less service arrive without end. The bound is a time because service decays with time: a
    lead that is several half-lives old is negligible, so patience changes no shares, however many flows
    compete. A bound in turns would: among N flows, one that costs c times as much is due every (N - 1) x c.

    Flows are kept in the order of `waiting_since`: of flows with equal service the first in that order is
    next, and overdue flows come before all others.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _F] = {}

    def get(self, name: str) -> _F | None:
        return self._flows.get(name)

    def __getitem__(self, name: str) -> _F:
        return self._flows[name]

    def __delitem__(self, name: str) -> None:
        del self._flows[name]

    def items(self) -> Iterator[tuple[str, _F]]:
        yield from self._flows.items()

    def add(self, name: str, flow: _F) -> None:
        """Add a flow whose `waiting_since` is not before that of any flow here."""
        self._flows[name] = flow

    def serve_next(self, patience_seconds: float, now: float) -> tuple[_F, Contenders]:
        """Return the flow to serve now, and the service of all that competed. O(flows)."""
        services = self._services()
        ranks = self._ranks(patience_seconds, now)
        name = next(islice(self._flows, ranks.index(min(ranks)), None))
        flow = self._flows[name] = self._flows.pop(name)
        flow.waiting_since = now
        return flow, Contenders(min(services), max(services), len(services))

    def _ranks(self, patience_seconds: float, now: float) -> list[float]:
        """Return the rank of each flow, in their order; the lowest is served next, of equals the first."""
        ranks = self._services()
        for index, flow in enumerate(self._flows.values()):
            if now - flow.waiting_since < patience_seconds:
                break
            ranks[index] = -math.inf
        return ranks

    def _services(self) -> list[float]:
        return [flow.account.service for flow in self._flows.values()]
