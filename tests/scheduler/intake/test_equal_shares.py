"""Backlogged flows get equal service, within a bound."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.scheduler.intake.tickets import Server, ticket

HALF_LIFE = 60.0


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
