"""The waiting requests of one tenant or one session, and whose turn it is among several such flows."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from scheduler.intake.service_ledger import Account, Rivals
from scheduler.intake.ticket import Ticket

SMALLEST_TOKENS = 256
"""Prompts with less than this to compute are equals: what a request costs besides outweighs the rest."""
LARGEST_TOKENS = 32768
_JUST_CAME_SECONDS = 0.001
"""As though each had waited for so long already, or those that came together would all have ratio 0."""


@dataclass(slots=True, eq=False)
class Flow:
    """What shares one account. `passed_over_since` is the turn at which it was last served, or came; it
    decides between flows of equal service."""

    account: Account
    passed_over_since: int = 0


@dataclass(slots=True, eq=False)
class SessionFlow(Flow):
    """Requests of one session, by the highest response ratio: waited / tokens to compute. Likely cache
    hits go first, and a cold request's ratio grows until it is the highest.

    Requests are kept in lines by size, a power of two each: the head of a line has its highest ratio, so a
    choice looks at no more heads than there are sizes. `window` bounds what the ratio may do: no request is
    overtaken by more than `window` - 1 that came after it.
    """

    lines: dict[int, OrderedDict[int, tuple[int, Ticket]]] = field(default_factory=dict)
    arrivals: int = 0
    length: int = 0

    def push(self, ticket: Ticket) -> None:
        line = self.lines.setdefault(_size(ticket), OrderedDict())
        line[ticket.request_id] = (self.arrivals, ticket)
        self.arrivals += 1
        self.length += 1

    def remove(self, ticket: Ticket) -> None:
        line = self.lines[_size(ticket)]
        del line[ticket.request_id]
        if not line:
            del self.lines[_size(ticket)]
        self.length -= 1

    def choose(self, window: int, now: float) -> Ticket:
        heads = [(size, *next(iter(line.values()))) for size, line in self.lines.items()]
        oldest = min(number for _, number, _ in heads)

        def urgency(head: tuple[int, int, Ticket]) -> tuple[float, int]:
            size, number, ticket = head
            return (now - ticket.queued_at + _JUST_CAME_SECONDS) / size, -number

        return max((head for head in heads if head[1] < oldest + window), key=urgency)[2]

    def before(self, ticket: Ticket) -> int:
        """How many came before it. O(length)."""
        mine = self.lines[_size(ticket)][ticket.request_id][0]
        return sum(number < mine for line in self.lines.values() for number, _ in line.values())

    def __iter__(self) -> Iterator[Ticket]:
        for line in self.lines.values():
            for _, ticket in line.values():
                yield ticket


def _size(ticket: Ticket) -> int:
    clipped = min(max(ticket.uncached_tokens, SMALLEST_TOKENS), LARGEST_TOKENS)
    return 1 << (clipped.bit_length() - 1)


@dataclass(slots=True, eq=False)
class TenantFlow(Flow):
    """A tenant's sessions that have requests waiting."""

    sessions: Turns[SessionFlow] = field(default_factory=lambda: Turns())
    length: int = 0


_F = TypeVar("_F", SessionFlow, TenantFlow)


class Turns(Generic[_F]):
    """Flows of one level. The least served is next; one that was passed over for `patience` turns is next
    whatever the counters say.

    So a flow is served within `patience` + (flows of its level) turns, also while newcomers without end
    come in below it. Between flows that all stay, the counters alone decide as long as no request costs
    `patience` times what another does. A choice looks at every flow: at most one for each queued request.
    """

    def __init__(self) -> None:
        self.flows: dict[str, _F] = {}
        self._turn = 0

    def add(self, name: str, flow: _F) -> None:
        flow.passed_over_since = self._turn
        self.flows[name] = flow

    def choose(self, patience: int) -> tuple[_F, Rivals]:
        """Whose turn it is, and what all have."""
        # One pass by hand: two of min() with keys doubled what a whole turn costs with a thousand flows.
        flows = iter(self.flows.values())
        least = longest = next(flows)
        lowest, earliest = least.account.service, longest.passed_over_since
        highest = lowest
        for flow in flows:
            service, since = flow.account.service, flow.passed_over_since
            if service < lowest or (service == lowest and since < least.passed_over_since):
                least, lowest = flow, service
            if service > highest:
                highest = service
            if since < earliest:
                longest, earliest = flow, since
        overdue = self._turn - earliest >= patience
        return longest if overdue else least, Rivals(lowest, highest, len(self.flows))

    def serve(self, flow: _F) -> None:
        self._turn += 1
        flow.passed_over_since = self._turn

    def places_ahead(self, name: str, place: int, service: float) -> int:
        """How many requests of other flows are served before the one at `place` of the named flow, which
        need not be here yet, if every request cost the same: the flows take turns, the less served first."""
        own = self.flows.get(name)
        since = math.inf if own is None else own.passed_over_since
        ahead = 0
        for flow in self.flows.values():
            if flow is not own:
                other = flow.account.service
                first = other < service or (other == service and flow.passed_over_since < since)
                ahead += min(flow.length, place + first)
        return ahead
