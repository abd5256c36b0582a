"""Which request is served next: priority bands, then tenants, their sessions, and the requests of a session.

Pure: `now` is an argument and must not decrease. Knows tickets only, neither streams nor the engine.

**Bands** are strict, lower numbers first, as in vLLM. A band is promoted by one for every `aging_seconds`
that its oldest request has waited, up to the best band that has requests, with which it then alternates. So a
request of priority p competes with the best waiting priority b after (p - b) x `aging_seconds`, and is then
served in its fair turn. Bands age, not single requests: the backlog of a flood is old, and its requests,
promoted one by one, would overtake a quiet tenant's new request.

**Within a band** the tenant with the least attained service is served next (VTC), of its sessions the one
with the least, and of its requests the one with the highest response ratio (`flow.py`). Fifty sessions of one
tenant share that tenant's service, and fifty requests of one session that session's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeAlias

from scheduler.config import FairnessConfig
from scheduler.intake.flow import FlowLevel, SessionFlow, TenantFlow
from scheduler.intake.service_ledger import ServiceLedger, Ticket
from scheduler.statistics import FlowStatistics

Charge: TypeAlias = Callable[[int, str, float, float, float], None]
"""Called with a charge to a tenant: the priority, its name, tokens of service (negative: a refund), the time
on whose scale they count, and now."""


def _nobody(priority: int, tenant: str, tokens: float, at: float, now: float) -> None: ...


class Band:
    """The waiting requests of one priority."""

    def __init__(self, config: FairnessConfig, ledger: ServiceLedger) -> None:
        self.ledger = ledger
        self._config = config
        self._tenants: FlowLevel[TenantFlow] = FlowLevel()
        self._by_arrival: OrderedDict[int, Ticket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_arrival)

    def age_seconds(self, now: float) -> float:
        """Return the age of its oldest request."""
        return now - next(iter(self._by_arrival.values())).queued_at

    def push(self, ticket: Ticket) -> None:
        self._by_arrival[ticket.request_id] = ticket
        tenant_account, session_account = self.ledger.arrive(ticket)
        tenant = self._tenants.get(ticket.tenant)
        if tenant is None:
            tenant = TenantFlow(tenant_account, ticket.queued_at)
            self._tenants.add(ticket.tenant, tenant)
        session = tenant.sessions.get(ticket.session)
        if session is None:
            session = SessionFlow(session_account, ticket.queued_at)
            tenant.sessions.add(ticket.session, session)
        session.push(ticket)
        tenant.length += 1

    def pop(self, now: float) -> Ticket:
        """Return the next request, charged its expected cost."""
        patience = self._config.patience_seconds
        tenant, tenants = self._tenants.serve_next(patience, now)
        session, sessions = tenant.sessions.serve_next(patience, now)
        ticket = session.choose(self._config.window, now)
        self._take_out(ticket)
        self.ledger.dispatch(ticket, tenants, sessions, now)
        return ticket

    def remove(self, ticket: Ticket, now: float) -> None:
        self._take_out(ticket)
        self.ledger.leave(ticket, now)

    def _take_out(self, ticket: Ticket) -> None:
        del self._by_arrival[ticket.request_id]
        tenant = self._tenants[ticket.tenant]
        session = tenant.sessions[ticket.session]
        session.remove(ticket)
        tenant.length -= 1
        if not session.length:
            del tenant.sessions[ticket.session]
        if not tenant.length:
            del self._tenants[ticket.tenant]

    def statistics(self, priority: int, now: float) -> Iterator[FlowStatistics]:
        for tenant_name, tenant in self._tenants.items():
            for session_name, session in tenant.sessions.items():
                tickets = list(session)
                yield FlowStatistics(
                    priority=priority,
                    tenant=tenant_name,
                    session=session_name,
                    requests=len(tickets),
                    prompt_tokens=sum(ticket.prompt_tokens for ticket in tickets),
                    oldest_seconds=now - min(ticket.queued_at for ticket in tickets),
                    tenant_service_tokens=self.ledger.attained_tokens(tenant.account, now),
                    session_service_tokens=self.ledger.attained_tokens(session.account, now),
                )


class FairQueue:
    """Unbounded; the caller bounds the number of waiting requests."""

    def __init__(self, config: FairnessConfig) -> None:
        self._config = config
        self._tickets: dict[int, Ticket] = {}
        self._ledger = ServiceLedger(config.half_life_seconds, config.output_weight)
        """The accounts of all bands: a tenant that spreads its requests over them has one share."""
        self._bands: OrderedDict[int, Band] = OrderedDict()
        """Bands by priority, the least recently served first."""
        self.on_charge: Charge = _nobody

    def __len__(self) -> int:
        return len(self._tickets)

    def push(self, ticket: Ticket) -> None:
        assert ticket.request_id not in self._tickets, "ids are never used again"
        self._tickets[ticket.request_id] = ticket
        self._band(ticket.priority).push(ticket)

    def pop(self, now: float) -> Ticket:
        """Return the next request to be served, charged its expected cost. Raise KeyError when empty."""
        if not self._tickets:
            raise KeyError("the queue is empty")
        priority = self._competing(now)[0]
        self._bands.move_to_end(priority)
        ticket = self._bands[priority].pop(now)
        del self._tickets[ticket.request_id]
        self.on_charge(priority, ticket.tenant, ticket.charged_tokens, now, now)
        return ticket

    def remove(self, request_id: int, now: float) -> Ticket | None:
        """Remove a request from any position and return it; None if it is not here."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._bands[ticket.priority].remove(ticket, now)
        return ticket

    def observe(self, ticket: Ticket, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """Charge a dispatched request for what it has cost until now beyond its estimate."""
        if beyond := self._ledger.observe(ticket, uncached_tokens, output_tokens, now):
            self.on_charge(ticket.priority, ticket.tenant, beyond, now, now)

    def charge_actual(self, ticket: Ticket, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """Replace the estimate by the final cost. Call it once for each popped request."""
        self.observe(ticket, uncached_tokens, output_tokens, now)
        if refund := self._ledger.refund(ticket, uncached_tokens, output_tokens, now):
            self.on_charge(ticket.priority, ticket.tenant, -refund, ticket.charged_at, now)

    def charge_elsewhere(self, priority: int, tenant: str, tokens: float, at: float, now: float) -> None:
        """Charge a tenant for service that it got from another queue."""
        self._ledger.charge_elsewhere(tenant, tokens, at, now)

    def statistics(self, now: float) -> tuple[FlowStatistics, ...]:
        """Return every backlogged flow, by priority."""
        return tuple(
            flow
            for priority in sorted(self._waiting())
            for flow in self._bands[priority].statistics(priority, now)
        )

    # --- bands

    def _band(self, priority: int) -> Band:
        if priority not in self._bands:
            self._bands[priority] = Band(self._config, self._ledger)
        return self._bands[priority]

    def _waiting(self) -> list[int]:
        return [priority for priority, band in self._bands.items() if len(band)]

    def _competing(self, now: float) -> list[int]:
        """Return the best band that has requests and those that have aged up to it; the first is served
        next."""
        waiting = self._waiting()
        best = min(waiting)
        return [
            priority
            for priority in waiting
            if self._bands[priority].age_seconds(now) >= (priority - best) * self._config.aging_seconds
        ]
