"""Backlogged flows get equal service, within a bound."""

from __future__ import annotations

import math
from itertools import count

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.scheduler.intake.tickets import Server, sizes, ticket

HALF_LIFE = 60.0


def fair_bound(largest: int, seconds: float) -> float:
    """Return the bound on the difference of two backlogged flows' service over an interval of this many
    seconds.

    Counters of backlogged flows never differ by more than one request's charge: only the lower is served.
    Over an interval the difference can go from one end of that to the other (VTC's 2 x), and where counters
    decay, a constant lead of one charge is paid again as often as it decays.
    """
    return largest * (2 + math.log(2) * seconds / HALF_LIFE)


@settings(max_examples=examples(100), deadline=None)
@given(
    flows=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 2000)), min_size=2, max_size=6),
    earlier=st.lists(st.tuples(st.sampled_from("ABCDEF"), sizes), max_size=20),
    pause=st.floats(0, 600),
    turns=st.integers(1, 200),
    seconds_per_token=st.sampled_from([0.0001, 0.001, 0.01]),
    level=st.sampled_from(["tenants", "sessions"]),
)
def test_backlogged_flows_get_the_same_service_whatever_they_send(
    flows: list[tuple[int, int]],
    earlier: list[tuple[str, int]],
    pause: float,
    turns: int,
    seconds_per_token: float,
    level: str,
) -> None:
    """Tenants, and sessions of one tenant: large requests or small, many sessions or one, whatever each had
    before or saved up while idle."""
    server = Server(seconds_per_token=seconds_per_token)

    def push(name: str, number: int, tokens: int) -> None:
        tenant, session = (name, str(number)) if level == "tenants" else ("T", name)
        server.push(ticket(tenant, session, tokens=tokens, at=server.now))

    for name, tokens in earlier:
        push(name, 0, tokens)
        server.serve()
    server.now += pause
    contenders = dict(zip("ABCDEF", flows, strict=False))
    numbers = {name: count() for name in contenders}

    def refill(name: str) -> None:
        sessions, tokens = contenders[name]
        push(name, next(numbers[name]) % sessions, tokens)

    for name in contenders:
        for _ in range(5):
            refill(name)
    began_at, began = server.now, len(server.served)
    largest = max(tokens for _, tokens in [*flows, *earlier])
    for _ in range(turns):
        one = server.serve()
        refill(one.tenant if level == "tenants" else one.session)
        served = (
            server.tokens_by_tenant(began) if level == "tenants" else server.tokens_by_session("T", began)
        )
        shares = [served[name] for name in contenders]
        assert max(shares) - min(shares) <= fair_bound(largest, server.now - began_at) + 1e-6


@settings(max_examples=examples(10), deadline=None)
@example(flows=128, heavy_flows=1, ratio=128, small=500, seconds_per_token=0.0, level="tenants")
@example(flows=256, heavy_flows=1, ratio=128, small=500, seconds_per_token=0.0001, level="sessions")
@example(flows=256, heavy_flows=3, ratio=128, small=2000, seconds_per_token=0.001, level="tenants")
@given(
    flows=st.integers(1, 256),
    heavy_flows=st.integers(1, 3),
    ratio=st.integers(1, 128),
    small=st.integers(1, 2000),
    seconds_per_token=st.sampled_from([0.0, 0.00001, 0.0001, 0.001]),
    level=st.sampled_from(["tenants", "sessions"]),
)
def test_backlogged_flows_stay_within_one_charge_whatever_their_number_and_costs(
    flows: int, heavy_flows: int, ratio: int, small: int, seconds_per_token: float, level: str
) -> None:
    """Some flows send requests that cost `ratio` times what the others' do. Decayed service never differs by
    more than one heavy request's charge; patience adds what remains of a charge after ten half-lives. And
    each flow is served within the patience, plus at most one request of each other flow."""
    server = Server(seconds_per_token=seconds_per_token)
    costs = {str(number): small * (ratio if number < heavy_flows else 1) for number in range(flows)}
    service = dict.fromkeys(costs, 0.0)
    served_at = dict.fromkeys(costs, 0.0)
    largest = max(costs.values())
    longest_wait = 10 * HALF_LIFE + sum(costs.values()) * seconds_per_token
    allowed = largest * (1 + 2.0**-9)

    def push(name: str) -> None:
        tenant, session = (name, "") if level == "tenants" else ("T", name)
        server.push(ticket(tenant, session, tokens=costs[name], at=server.now))

    for name in costs:
        push(name)
        push(name)
    for _ in range(2000):
        before = server.now
        one = server.serve()
        name = one.tenant if level == "tenants" else one.session
        assert before - served_at[name] <= longest_wait + 1e-6
        push(name)
        # Charged when dispatched, at `before`; everything decays until the next one.
        served_at[name] = before
        service[name] += costs[name]
        assert max(service.values()) - min(service.values()) <= allowed + 1e-6
        decay = 2 ** ((before - server.now) / HALF_LIFE)
        service = {each: tokens * decay for each, tokens in service.items()}
