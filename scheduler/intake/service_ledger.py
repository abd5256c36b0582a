"""Attained service by tenant, and by session within each tenant.

Pure: `now` is an argument. Service is counted in tokens, *uncached prefill + weight x output* (the cost of
VTC, arXiv 2401.00588, except that cached tokens count nothing). It halves every half-life, so that an hour of
work at night does not count against a tenant for the rest of the day.

Decay is forward: instead of shrinking every counter as time passes, a charge at time t is multiplied by
2^(t / half-life). Counters then stay constant while nothing is served and compare as the decayed ones would;
only reported values are divided by the current scale.

An account that becomes backlogged (its first request is queued) is lifted to the virtual time of its level:
idleness earns no credit, and a newcomer has no better claim than flows that have waited all along. Virtual
time is that of fair queueing (Demers, Keshav, Shenker 1989): each dispatch advances it by the charge divided
by the number of backlogged flows, within the least and the most service that one of them has. The least
service alone would not advance while newcomers arrive faster than they are served, and a flow's second
request would then wait for all of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

IDLE_SESSIONS = 1024
"""Bound on the accounts kept of sessions without a request. Beyond it the longest idle account is dropped,
which forgives what had not decayed: at worst the cost of one answer."""
NEGLIGIBLE_TOKENS = 0.1
"""An idle account with less service than this above virtual time is dropped. Must be less than the smallest
request's cost, or a flow of such requests would be forgotten after each one and always go first."""
_NOBODY = "\0elsewhere"
"""The session of a tenant that was only ever charged for service elsewhere: its account is kept, and
forgotten, like that of an idle session."""
_REBASE_EXPONENT = 512
"""Scales stay below 2^512 of a double's 2^1024: room for any sum of charges."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request, as the fair queue sees it: while it waits, and until it is charged its actual cost.
    `uncached_tokens` (prefill to compute) and `output_tokens` are estimates. `queued_at` never decreases from
    push to push."""

    request_id: int
    tenant: str
    session: str
    """Empty if no header names one: all such requests are one session, or each would get a share."""
    priority: int
    prompt_tokens: int
    uncached_tokens: int
    output_tokens: int
    queued_at: float
    charged_at: float = 0.0
    """When it was dispatched and charged its estimate."""
    charged_tokens: float = 0.0
    """The estimate, and what observed costs exceed it by."""


@dataclass(slots=True)
class Account:
    """Service attained by one tenant or session, in scaled tokens, and how many of its requests wait and run.
    `virtual_time` is that of its own sessions, in the same unit."""

    service: float = 0.0
    waiting: int = 0
    running: int = 0
    virtual_time: float = 0.0
    sessions: dict[str, Account] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contenders:
    """The backlogged flows from which one was chosen: their least and most service, and their number."""

    least: float
    most: float
    flows: int


class ServiceLedger:
    """Accounts of one priority band."""

    def __init__(self, half_life_seconds: float, output_weight: float) -> None:
        self._half_life_seconds = half_life_seconds
        self._output_weight = output_weight
        self._epoch = 0.0
        self._root = Account()
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()

    @property
    def sessions(self) -> int:
        """Return how many sessions have an account, of all tenants."""
        return sum(len(tenant.sessions) for tenant in self._root.sessions.values())

    def account(self, tenant: str) -> Account | None:
        return self._root.sessions.get(tenant)

    def attained_tokens(self, account: Account, now: float) -> float:
        """Return decayed service, in tokens as of `now`; after a lift it is at least virtual time."""
        return account.service / self._scale(now)

    # --- a request's life

    def arrive(self, ticket: Ticket) -> tuple[Account, Account]:
        """Return the accounts of its tenant and session, lifted if this is their first waiting request."""
        tenant = self._root.sessions.setdefault(ticket.tenant, Account())
        session = tenant.sessions.setdefault(ticket.session, Account())
        self._idle.pop((ticket.tenant, ticket.session), None)
        for account, parent in ((tenant, self._root), (session, tenant)):
            if not account.waiting:
                account.service = _lifted(account, parent)
            account.waiting += 1
        return tenant, session

    def leave(self, ticket: Ticket, now: float) -> None:
        """Take note that a request leaves the queue unserved."""
        for account in self._accounts(ticket):
            account.waiting -= 1
        self._forget_idle(ticket, now)

    def dispatch(self, ticket: Ticket, tenants: Contenders, sessions: Contenders, now: float) -> None:
        """Charge a request that goes to the engine its expected cost. `tenants` and `sessions` are those from
        which it was chosen, before the charge."""
        tenant, session = self._accounts(ticket)
        tokens = self.cost(ticket.uncached_tokens, ticket.output_tokens)
        charged = tokens * self._scale(now)
        self._root.virtual_time = _advanced(self._root.virtual_time, tenants, charged)
        tenant.virtual_time = _advanced(tenant.virtual_time, sessions, charged)
        # Not earlier: the services in `tenants` and `sessions` are on the scale before it.
        self._rebase(now)
        for account in (tenant, session):
            account.waiting -= 1
            account.running += 1
            account.service += tokens * self._scale(now)
        ticket.charged_at, ticket.charged_tokens = now, tokens

    def observe(self, ticket: Ticket, uncached_tokens: int, output_tokens: int, now: float) -> float:
        """Take the actual cost until now. Cost beyond the estimate is charged immediately, and returned; only
        `refund` gives back an overestimate."""
        beyond = max(0.0, self.cost(uncached_tokens, output_tokens) - ticket.charged_tokens)
        if beyond:
            self._rebase(now)
            ticket.charged_tokens += beyond
            for account in self._accounts(ticket):
                account.service += beyond * self._scale(now)
        return beyond

    def refund(self, ticket: Ticket, uncached_tokens: int, output_tokens: int, now: float) -> float:
        """Take what the estimate exceeds the final cost by off the accounts, and return it: the request has
        left the engine, and `observe` has had the same cost."""
        refund = ticket.charged_tokens - self.cost(uncached_tokens, output_tokens)
        for account in self._accounts(ticket):
            # The estimate was charged on the scale of `charged_at`.
            account.service -= refund * self._scale(ticket.charged_at)
            account.running -= 1
        self._forget_idle(ticket, now)
        return refund

    def charge_elsewhere(self, tenant: str, tokens: float, at: float, now: float) -> None:
        """Charge a tenant, and none of its sessions, for service outside this ledger, as of `at`; negative
        `tokens` are a refund."""
        self._rebase(max(now, at))
        account = self._root.sessions.setdefault(tenant, Account())
        if tokens > 0:
            # Lift an idle tenant first: otherwise the lift on its next arrival would swallow the charge.
            account.service = _lifted(account, self._root)
        account.service += tokens * self._scale(at)
        if not account.sessions:
            account.sessions[_NOBODY] = Account()
        if _NOBODY in account.sessions:
            self._idle[tenant, _NOBODY] = None
            self._idle.move_to_end((tenant, _NOBODY))
        self._forget_negligible(now)

    def cost(self, uncached_tokens: int, output_tokens: int) -> float:
        return uncached_tokens + self._output_weight * output_tokens

    # --- scale and memory

    def _accounts(self, ticket: Ticket) -> tuple[Account, Account]:
        tenant = self._root.sessions[ticket.tenant]
        return tenant, tenant.sessions[ticket.session]

    def _scale(self, now: float) -> float:
        # Bounded, in case the clock jumped since the last rebase.
        return float(2.0 ** min((now - self._epoch) / self._half_life_seconds, 2.0 * _REBASE_EXPONENT - 1))

    def _rebase(self, now: float) -> None:
        """Move the epoch to `now` when scales get large (every 512 half-lives), and scale counters down."""
        exponent = math.floor((now - self._epoch) / self._half_life_seconds)
        if exponent <= _REBASE_EXPONENT:
            return
        self._epoch += exponent * self._half_life_seconds
        accounts = [self._root]
        while accounts:
            account = accounts.pop()
            account.service = math.ldexp(account.service, -exponent)
            account.virtual_time = math.ldexp(account.virtual_time, -exponent)
            accounts.extend(account.sessions.values())

    def _forget_idle(self, ticket: Ticket, now: float) -> None:
        session = self._accounts(ticket)[1]
        if not session.waiting and not session.running:
            self._idle[ticket.tenant, ticket.session] = None
        self._forget_negligible(now)

    def _forget_negligible(self, now: float) -> None:
        while self._idle:
            oldest = next(iter(self._idle))
            if len(self._idle) <= IDLE_SESSIONS and not self._is_negligible(*oldest, now):
                return
            self._forget(*oldest)

    def _is_negligible(self, tenant: str, session: str, now: float) -> bool:
        tenant_account = self._root.sessions[tenant]
        session_account = tenant_account.sessions[session]
        above = max(
            tenant_account.service - self._root.virtual_time,
            session_account.service - tenant_account.virtual_time,
        )
        return above / self._scale(now) < NEGLIGIBLE_TOKENS

    def _forget(self, tenant: str, session: str) -> None:
        del self._idle[tenant, session]
        account = self._root.sessions[tenant]
        del account.sessions[session]
        if not account.sessions:
            del self._root.sessions[tenant]


def _advanced(virtual_time: float, contenders: Contenders, charged: float) -> float:
    virtual_time = max(virtual_time, contenders.least)
    return max(virtual_time, min(virtual_time + charged / contenders.flows, contenders.most))


def _lifted(account: Account, parent: Account) -> float:
    return account.service if account.waiting else max(account.service, parent.virtual_time)
