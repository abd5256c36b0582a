"""Attained service: charges, decay, and which accounts are dropped."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.intake.service_ledger import IDLE_SESSIONS, Contenders, ServiceLedger
from tests.examples import examples
from tests.scheduler.intake.tickets import ticket

HALF_LIFE = 60.0
_NO_CONTENTION = Contenders(0.0, 0.0, 1)


def serve(ledger: ServiceLedger, tenant: str, tokens: int, now: float, session: str = "") -> None:
    one = ticket(tenant, session, tokens=tokens, at=now)
    accounts = ledger.arrive(one)
    tenants, sessions = (Contenders(own.service, own.service, 1) for own in accounts)
    ledger.dispatch(one, tenants, sessions, now)
    ledger.observe(one, tokens, 0, now)
    ledger.refund(one, tokens, 0, now)


def attained(ledger: ServiceLedger, tenant: str, now: float) -> float:
    account = ledger.account(tenant)
    return 0.0 if account is None else ledger.attained_tokens(account, now)


@settings(max_examples=examples(200))
@given(charges=st.lists(st.tuples(st.floats(0, 600), st.integers(1, 100_000)), min_size=1, max_size=30))
def test_service_halves_every_half_life(charges: list[tuple[float, int]]) -> None:
    """Equal to halving every charge at each half-life since, over any length of time."""
    ledger, now, expected = ServiceLedger(HALF_LIFE, 2.0), 0.0, 0.0
    # A request that waits all along, so that the account is never lifted or dropped.
    ledger.arrive(ticket("T", "waits"))
    for pause, tokens in charges:
        now += pause
        expected = expected * 2 ** (-pause / HALF_LIFE) + tokens
        serve(ledger, "T", tokens, now)
        assert attained(ledger, "T", now) == pytest.approx(expected)


def test_days_do_not_overflow() -> None:
    """A counter that grew with 2^t would be infinite after 17 hours; idle weeks in between neither."""
    ledger, now = ServiceLedger(HALF_LIFE, 2.0), 0.0
    for pause in [*[7.0] * 50_000, 30 * 86_400.0, 0.0, 1.0, 400 * 86_400.0, 2.0]:
        now += pause
        ledger.arrive(waiting := ticket("other", at=now))
        serve(ledger, "T", 100, now)
        assert math.isfinite(attained(ledger, "T", now))
        ledger.leave(waiting, now)
    serve(ledger, "T", 100, now)
    assert 100 <= attained(ledger, "T", now) <= 400


@given(
    expected=st.integers(1, 5000),
    figures=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2000)), min_size=1, max_size=10),
)
def test_a_charge_is_never_less_than_what_is_known_and_in_the_end_exactly_that(
    expected: int, figures: list[tuple[int, int]]
) -> None:
    """An answer longer than expected is charged as it grows; an overestimate is refunded at the end."""
    ledger = ServiceLedger(HALF_LIFE, 2.0)
    one = ticket("T", tokens=expected)
    accounts = ledger.arrive(one)
    ledger.dispatch(one, _NO_CONTENTION, _NO_CONTENTION, 0.0)
    uncached = output = 0
    for more_uncached, more_output in figures:
        uncached, output = max(uncached, more_uncached), max(output, more_output)
        ledger.observe(one, uncached, output, 0.0)
        assert ledger.attained_tokens(accounts[0], 0.0) == max(expected, uncached + 2 * output)
    ledger.observe(one, uncached, output, 0.0)
    ledger.refund(one, uncached, output, 0.0)
    for account in accounts:
        assert ledger.attained_tokens(account, 0.0) == uncached + 2 * output
        assert (account.waiting, account.running) == (0, 0)


def test_a_newcomer_starts_at_the_level_that_others_have_reached() -> None:
    """Not at zero, which would be a claim to all that the others ever had. So does a tenant's new session."""
    ledger = ServiceLedger(HALF_LIFE, 2.0)
    for _ in range(10):
        serve(ledger, "worker", 100, 0.0, "old")
    tenant, _ = ledger.arrive(ticket("newcomer"))
    _, session = ledger.arrive(ticket("worker", "new"))
    for account in (tenant, session):
        assert 900 <= ledger.attained_tokens(account, 0.0) <= 1000


def test_the_books_are_bounded_and_what_runs_is_never_forgotten() -> None:
    """The ledger keeps the bound's number of 10,000 tenants with service, and all with running requests."""
    ledger = ServiceLedger(HALF_LIFE, 2.0)
    running = []
    for number in range(10):
        ledger.arrive(one := ticket(f"runs {number}", tokens=500))
        ledger.dispatch(one, _NO_CONTENTION, _NO_CONTENTION, 0.0)
        running.append(one)
    for number in range(10_000):
        serve(ledger, f"tenant {number}", 1000, 0.0)
    assert ledger.sessions == IDLE_SESSIONS + 10
    for one in running:
        ledger.observe(one, 500, 0, 0.0)
        ledger.refund(one, 500, 0, 0.0)
    assert ledger.sessions == IDLE_SESSIONS


def test_what_has_decayed_is_forgotten() -> None:
    """An account without service is like one that never existed."""
    ledger = ServiceLedger(HALF_LIFE, 2.0)
    for number in range(100):
        serve(ledger, f"tenant {number}", 1000, 0.0)
    assert ledger.sessions == 100
    serve(ledger, "later", 1, 16 * HALF_LIFE)
    assert ledger.sessions <= 1
