"""Who has had how much of the engine: attained service by tenant, and by session within each.

Pure: `now` is an argument. Service is counted in tokens, *uncached prefill + weight x output* (VTC's cost,
arXiv 2401.00588, but for the cached tokens, which cost next to nothing), and halves every half-life, so that
an hour of night work does not weigh on a tenant for the day.

Decay is forward: instead of shrinking every counter as time passes, a charge at time t is multiplied by
2^(t / half-life). Counters then stand still while nobody is served, compare as the decayed ones would, and
cost nothing to keep; only what is shown is divided by the scale of the moment.

An account that becomes active (its first request is queued) is lifted to the level that its siblings have
reached: idleness is no credit, and a newcomer, or a session spawned a moment ago, has no more of a claim than
anybody who has waited all along. The level is the virtual time of fair queueing (Demers, Keshav, Shenker
1989): with every dispatch it rises by what each of those who waited would have had of it, between the least
and the most that one of them has. The least alone would stand still as long as newcomers come faster than
they are served, and who asks for the second time would wait for all of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from scheduler.intake.ticket import Ticket

IDLE_SESSIONS = 1024
"""So many sessions without a request are remembered. Beyond that the longest idle is forgotten, whose tenant
comes back with what had not decayed as a gift: at worst one answer's worth, against memory without bound."""
NEGLIGIBLE_TOKENS = 0.1
"""Service above the level reached that is not worth remembering: less than the smallest request's, or a flow
of such requests would be forgotten after each and always come first."""
_REBASE_EXPONENT = 512
"""Scales stay below 2^512 of a double's 2^1024: room for any sum of charges."""


@dataclass(slots=True)
class Account:
    """Service attained by one tenant or session, in scaled tokens; and what its own sessions have reached."""

    service: float = 0.0
    waiting: int = 0
    running: int = 0
    reached: float = 0.0
    sessions: dict[str, Account] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rivals:
    """Of the flows among which one was chosen: the least and the most service, and how many they are."""

    least: float
    most: float
    flows: int


@dataclass(slots=True)
class Charge:
    """What a dispatched request was charged: provisionally at `at`, and corrected as figures come in."""

    ticket: Ticket
    at: float
    provisional_tokens: float
    charged_tokens: float


class ServiceLedger:
    """Accounts of one priority band."""

    def __init__(self, half_life_seconds: float, output_weight: float) -> None:
        self._half_life_seconds = half_life_seconds
        self._output_weight = output_weight
        self._epoch = 0.0
        self._root = Account()
        self._idle: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __len__(self) -> int:
        """How many tenants are remembered."""
        return len(self._root.sessions)

    @property
    def sessions(self) -> int:
        """How many sessions are remembered, of all tenants."""
        return sum(len(tenant.sessions) for tenant in self._root.sessions.values())

    def account(self, tenant: str, session: str | None = None) -> Account | None:
        """As it is remembered; None for who is not."""
        found = self._root.sessions.get(tenant)
        return found if found is None or session is None else found.sessions.get(session)

    def standing(self, tenant: str, session: str) -> tuple[float, float]:
        """The scaled service that a request pushed now would compete with: its tenant's, its session's."""
        tenant_account = self.account(tenant)
        if tenant_account is None:
            return self._root.reached, 0.0
        session_account = tenant_account.sessions.get(session)
        return (
            _lifted(tenant_account, self._root),
            tenant_account.reached if session_account is None else _lifted(session_account, tenant_account),
        )

    def attained_tokens(self, account: Account, now: float) -> float:
        """Decayed service, in tokens of this moment; after a lift it is at least what the others had."""
        return account.service / self._scale(now)

    # --- a request's way through the books

    def arrive(self, ticket: Ticket) -> tuple[Account, Account]:
        """Its tenant's and its session's account, lifted where this is their first waiting request."""
        tenant = self._root.sessions.setdefault(ticket.tenant, Account())
        session = tenant.sessions.setdefault(ticket.session, Account())
        self._idle.pop((ticket.tenant, ticket.session), None)
        for account, parent in ((tenant, self._root), (session, tenant)):
            if not account.waiting:
                account.service = _lifted(account, parent)
            account.waiting += 1
        return tenant, session

    def leave(self, ticket: Ticket, now: float) -> None:
        """It left the queue without having been served."""
        for account in self._accounts(ticket):
            account.waiting -= 1
        self._forget_idle(ticket, now)

    def dispatch(self, ticket: Ticket, tenants: Rivals, sessions: Rivals, now: float) -> Charge:
        """It goes to the engine and is charged what it is expected to cost. `tenants` and `sessions`: those
        that it was chosen from, as they were."""
        tenant, session = self._accounts(ticket)
        tokens = self.cost(ticket.uncached_tokens, ticket.output_tokens)
        self._root.reached = _risen(self._root.reached, tenants, tokens * self._scale(now))
        tenant.reached = _risen(tenant.reached, sessions, tokens * self._scale(now))
        # Not before: what the flows have are counters too, and were read before it.
        self._rebase(now)
        for account in (tenant, session):
            account.waiting -= 1
            account.running += 1
            account.service += tokens * self._scale(now)
        return Charge(ticket, now, tokens, tokens)

    def observe(self, charge: Charge, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """So much it has really cost until now. An answer longer than expected is charged while it
        grows; what may turn out cheaper is given back at the end only."""
        beyond = self.cost(uncached_tokens, output_tokens) - charge.charged_tokens
        if beyond > 0:
            self._rebase(now)
            charge.charged_tokens += beyond
            for account in self._accounts(charge.ticket):
                account.service += beyond * self._scale(now)

    def settle(self, charge: Charge, uncached_tokens: int, output_tokens: int, now: float) -> None:
        """It has left the engine, and this is what it really cost."""
        self.observe(charge, uncached_tokens, output_tokens, now)
        # Only the provisional part can have been too much, and it was charged at the scale of its own time.
        refund = charge.charged_tokens - self.cost(uncached_tokens, output_tokens)
        for account in self._accounts(charge.ticket):
            account.service -= refund * self._scale(charge.at)
            account.running -= 1
        self._forget_idle(charge.ticket, now)

    def cost(self, uncached_tokens: int, output_tokens: int) -> float:
        return uncached_tokens + self._output_weight * output_tokens

    # --- scale and memory

    def _accounts(self, ticket: Ticket) -> tuple[Account, Account]:
        tenant = self._root.sessions[ticket.tenant]
        return tenant, tenant.sessions[ticket.session]

    def _scale(self, now: float) -> float:
        # Not above the bound, should a clock have jumped since the last rebase.
        return float(2.0 ** min((now - self._epoch) / self._half_life_seconds, 2.0 * _REBASE_EXPONENT - 1))

    def _rebase(self, now: float) -> None:
        """Halve everything as often as half-lives have passed: some hours' worth, every some hours."""
        exponent = math.floor((now - self._epoch) / self._half_life_seconds)
        if exponent <= _REBASE_EXPONENT:
            return
        self._epoch += exponent * self._half_life_seconds
        accounts = [self._root]
        while accounts:
            account = accounts.pop()
            account.service = math.ldexp(account.service, -exponent)
            account.reached = math.ldexp(account.reached, -exponent)
            accounts.extend(account.sessions.values())

    def _forget_idle(self, ticket: Ticket, now: float) -> None:
        session = self._accounts(ticket)[1]
        if not session.waiting and not session.running:
            self._idle[ticket.tenant, ticket.session] = None
        while self._idle:
            oldest = next(iter(self._idle))
            if len(self._idle) <= IDLE_SESSIONS and not self._is_negligible(*oldest, now):
                return
            self._forget(*oldest)

    def _is_negligible(self, tenant: str, session: str, now: float) -> bool:
        tenant_account = self._root.sessions[tenant]
        session_account = tenant_account.sessions[session]
        above = max(
            tenant_account.service - self._root.reached, session_account.service - tenant_account.reached
        )
        return above / self._scale(now) < NEGLIGIBLE_TOKENS

    def _forget(self, tenant: str, session: str) -> None:
        del self._idle[tenant, session]
        account = self._root.sessions[tenant]
        del account.sessions[session]
        if not account.sessions:
            del self._root.sessions[tenant]


def _risen(reached: float, waiting: Rivals, charged: float) -> float:
    reached = max(reached, waiting.least)
    return max(reached, min(reached + charged / waiting.flows, waiting.most))


def _lifted(account: Account, parent: Account) -> float:
    return account.service if account.waiting else max(account.service, parent.reached)
