"""No starvation: every request is served within a bound, for any later arrivals."""

from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import FairnessConfig
from scheduler.intake.service_ledger import Ticket
from tests.examples import examples
from tests.scheduler.intake.tickets import Server, sizes, ticket


def seconds_bound(config: FairnessConfig, tenants: int, sessions: int, before: int, bands: int) -> float:
    """The seconds until a competing request is served, for any arrivals, at one request a second: its band is
    served every `bands` turns, its tenant within the patience and one turn of each tenant, and so on."""
    tenant_seconds = bands * (config.patience_seconds + tenants)
    session_seconds = config.patience_seconds + sessions * tenant_seconds
    return session_seconds * (before + config.window)


STARVING = FairnessConfig(patience_seconds=4.0, window=3, aging_seconds=20.0)


@settings(max_examples=examples(300), deadline=None)
@given(
    victim=st.tuples(st.sampled_from("AB"), st.sampled_from("xy"), st.integers(-1, 1), sizes),
    before=st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from("xy"), sizes), max_size=6),
    others=st.lists(
        st.tuples(
            st.sampled_from(["A", "B", "new"]),
            st.sampled_from(["x", "y", "new"]),
            st.integers(-1, 1),
            st.integers(1, 300),
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_every_request_is_served_within_a_bound_whatever_comes_meanwhile(
    victim: tuple[str, str, int, int],
    before: list[tuple[str, str, int]],
    others: list[tuple[str, str, int, int]],
) -> None:
    """Smaller ones in its session, new sessions, new tenants, better priorities: others keep arriving, one
    for each that is served, as long as it waits."""
    server = Server(STARVING, seconds_per_token=0.0)
    names = count()

    def push(tenant: str, session: str, priority: int, tokens: int) -> Ticket:
        tenant = f"new {next(names)}" if tenant == "new" else tenant
        session = f"new {next(names)}" if session == "new" else session
        one = ticket(tenant, session, priority=priority, tokens=tokens, at=server.now)
        server.push(one)
        return one

    for tenant, session, tokens in before:
        push(tenant, session, 0, tokens)
    for other in others:
        push(*other)
    one = push(*victim)
    queued = len(server.queue)
    competing_after = (victim[2] + 1) * STARVING.aging_seconds
    bound = seconds_bound(STARVING, queued, queued, queued, bands=3) + competing_after
    for turn in count():
        assert server.now <= bound
        server.now += 1.0
        if server.serve() is one:
            break
        push(*others[turn % len(others)])


@pytest.mark.parametrize("level", ["tenants", "sessions"])
def test_a_flow_with_a_debt_is_not_starved_by_newcomers_without_end(level: str) -> None:
    """Each newcomer has less service than the flow. That flow is served once its patience is over, and no
    more often."""
    server = Server(STARVING, seconds_per_token=0.0)

    def flow(name: str, tokens: int) -> Ticket:
        tenant, session = (name, "") if level == "tenants" else ("T", name)
        return ticket(tenant, session, tokens=tokens, at=server.now)

    server.push(flow("veteran", 1_000_000), flow("other", 1))
    server.serve()
    server.serve()
    veteran = flow("veteran", 100)
    server.push(veteran)
    served_at = []
    for turn in range(40):
        server.now = float(turn)
        server.push(flow(f"newcomer {turn}", 1))
        if server.serve() is veteran:
            served_at.append(turn)
            veteran = flow("veteran", 100)
            server.push(veteran)
    gaps = [later - earlier for earlier, later in pairwise([-1, *served_at])]
    assert STARVING.patience_seconds <= min(gaps[1:])
    assert max(gaps) <= STARVING.patience_seconds + len(server.queue)
