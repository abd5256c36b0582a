"""Whose turn it is: priority bands, then tenants, their sessions, and the requests of a session.

Pure: `now` is an argument, and it may not decrease. Knows tickets only, neither streams nor the engine.

**Bands** are strict, lower first, vLLM's sign. A band is as urgent as its oldest request has aged: one band
for every `aging_seconds`, up to the best band that waits, with which it then takes turns. So a request of
priority p competes with the best priority b that others ask for after (p - b) x `aging_seconds`, and is then
served in its fair turn. It is the band that ages and not the single request, because the backlog of a flood
is old: its requests, promoted one by one, would pass a quiet tenant's that has just come.

**Within a band** the tenant with the least attained service is next, of its sessions the one with the least,
and of its requests the one with the highest response ratio (`flow.py`). Fifty sessions of one tenant share
what the tenant has, fifty requests of one session what the session has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from scheduler.config import FairnessConfig
from scheduler.intake.flow import SessionFlow, TenantFlow, Turns
from scheduler.intake.service_ledger import Charge, ServiceLedger
from scheduler.intake.ticket import Ticket
from scheduler.statistics import FlowStatistics


class Band:
    """The waiting requests of one priority, and the books of those served from it."""

    def __init__(self, config: FairnessConfig) -> None:
        self.ledger = ServiceLedger(config.half_life_seconds, config.output_weight)
        self._config = config
        self._tenants: Turns[TenantFlow] = Turns()
        self._by_arrival: OrderedDict[int, Ticket] = OrderedDict()
        self.served_at = 0
        """The queue's turn at which this band was last chosen."""

    def __len__(self) -> int:
        return len(self._by_arrival)

    def age_seconds(self, now: float) -> float:
        """Of its oldest request."""
        return now - next(iter(self._by_arrival.values())).queued_at

    def push(self, ticket: Ticket) -> None:
        self._by_arrival[ticket.request_id] = ticket
        tenant_account, session_account = self.ledger.arrive(ticket)
        tenant = self._tenants.flows.get(ticket.tenant)
        if tenant is None:
            tenant = TenantFlow(tenant_account)
            self._tenants.add(ticket.tenant, tenant)
        session = tenant.sessions.flows.get(ticket.session)
        if session is None:
            session = SessionFlow(session_account)
            tenant.sessions.add(ticket.session, session)
        session.push(ticket)
        tenant.length += 1

    def pop(self, now: float) -> Charge:
        """The next request, charged what it is expected to cost."""
        tenant, tenants = self._tenants.choose(self._config.patience)
        session, sessions = tenant.sessions.choose(self._config.patience)
        ticket = session.choose(self._config.window, now)
        self._tenants.serve(tenant)
        tenant.sessions.serve(session)
        self._take_out(ticket)
        return self.ledger.dispatch(ticket, tenants, sessions, now)

    def remove(self, ticket: Ticket, now: float) -> None:
        self._take_out(ticket)
        self.ledger.leave(ticket, now)

    def _take_out(self, ticket: Ticket) -> None:
        del self._by_arrival[ticket.request_id]
        tenant = self._tenants.flows[ticket.tenant]
        session = tenant.sessions.flows[ticket.session]
        session.remove(ticket)
        tenant.length -= 1
        if not session.length:
            del tenant.sessions.flows[ticket.session]
        if not tenant.length:
            del self._tenants.flows[ticket.tenant]

    def places_before(self, ticket: Ticket) -> int:
        """How many of this band go before a waiting request, if every request cost the same."""
        session = self._tenants.flows[ticket.tenant].sessions.flows[ticket.session]
        return self._places(ticket.tenant, ticket.session, session.before(ticket))

    def places_before_next(self, tenant: str, session: str) -> int:
        """The same for one that would be pushed now."""
        flow = self._tenants.flows.get(tenant)
        queue = None if flow is None else flow.sessions.flows.get(session)
        return self._places(tenant, session, 0 if queue is None else queue.length)

    def _places(self, tenant: str, session: str, place: int) -> int:
        tenant_service, session_service = self.ledger.standing(tenant, session)
        flow = self._tenants.flows.get(tenant)
        if flow is not None:
            place += flow.sessions.places_ahead(session, place, session_service)
        return place + self._tenants.places_ahead(tenant, place, tenant_service)

    def statistics(self, priority: int, now: float) -> Iterator[FlowStatistics]:
        for tenant_name, tenant in self._tenants.flows.items():
            for session_name, session in tenant.sessions.flows.items():
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
    """Unbounded: how much may wait is the caller's affair."""

    def __init__(self, config: FairnessConfig) -> None:
        self._config = config
        self._tickets: dict[int, Ticket] = {}
        self._bands: dict[int, Band] = {}
        self._turn = 0

    def __len__(self) -> int:
        return len(self._tickets)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._tickets

    def push(self, ticket: Ticket) -> None:
        assert ticket.request_id not in self._tickets, "ids are never used again"
        self._tickets[ticket.request_id] = ticket
        self._band(ticket.priority).push(ticket)

    def pop(self, now: float) -> Charge:
        """The next request to be served, with what it was charged. KeyError when empty."""
        if not self._tickets:
            raise KeyError("the queue is empty")
        band = self._bands[min(self._competing(now), key=lambda priority: self._bands[priority].served_at)]
        self._turn += 1
        band.served_at = self._turn
        charge = band.pop(now)
        del self._tickets[charge.ticket.request_id]
        return charge

    def remove(self, request_id: int, now: float) -> Ticket | None:
        """Take one out, wherever it stands; None if it is not here."""
        ticket = self._tickets.pop(request_id, None)
        if ticket is not None:
            self._bands[ticket.priority].remove(ticket, now)
        return ticket

    def observe(self, charge: Charge, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """What a request in the engine has cost until now."""
        self._bands[charge.ticket.priority].ledger.observe(charge, uncached_tokens, output_tokens, now)

    def settle(self, charge: Charge, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """What it has cost in the end. Each popped request is settled once."""
        self._bands[charge.ticket.priority].ledger.settle(charge, uncached_tokens, output_tokens, now)

    def ahead_of(self, request_id: int, now: float) -> int | None:
        """How many will be served before this one, as things stand and if every request cost the same;
        None if it is not here."""
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return None
        return self._ahead(ticket.priority, self._bands[ticket.priority].places_before(ticket), now)

    def ahead_of_next(self, tenant: str, session: str, priority: int, now: float) -> int:
        """The same for a request that would be pushed now."""
        return self._ahead(priority, self._band(priority).places_before_next(tenant, session), now)

    def statistics(self, now: float) -> tuple[FlowStatistics, ...]:
        """Every flow that waits; bands in the order of their priorities."""
        return tuple(
            flow
            for priority in sorted(self._waiting())
            for flow in self._bands[priority].statistics(priority, now)
        )

    @property
    def remembered_sessions(self) -> int:
        """How many sessions' books are kept, whether or not they wait."""
        return sum(band.ledger.sessions for band in self._bands.values())

    # --- bands

    def _band(self, priority: int) -> Band:
        if priority not in self._bands:
            self._bands[priority] = Band(self._config)
        return self._bands[priority]

    def _waiting(self) -> list[int]:
        return [priority for priority, band in self._bands.items() if len(band)]

    def _competing(self, now: float) -> list[int]:
        """The best band that waits, and those that have aged up to it."""
        waiting = self._waiting()
        best = min(waiting)
        return [
            priority
            for priority in waiting
            if self._bands[priority].age_seconds(now) >= (priority - best) * self._config.aging_seconds
        ]

    def _ahead(self, priority: int, place: int, now: float) -> int:
        waiting = self._waiting()
        if not waiting:
            return place
        competing = self._competing(now)
        if priority in competing or priority < min(waiting):
            own = self._bands[priority]
            peers = [self._bands[peer] for peer in competing if priority in competing and peer != priority]
            return place + sum(min(len(peer), place + (peer.served_at < own.served_at)) for peer in peers)
        better = {other for other in waiting if other < priority} | set(competing)
        return place + sum(len(self._bands[other]) for other in better - {priority})
