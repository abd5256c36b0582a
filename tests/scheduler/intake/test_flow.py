"""The order of requests within one session."""

from __future__ import annotations

from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from scheduler.intake.flow import SessionFlow
from scheduler.intake.service_ledger import Account, Ticket
from tests.scheduler.intake.tickets import ticket


def flow_of(*tickets: Ticket) -> SessionFlow:
    flow = SessionFlow(Account(), 0.0)
    for one in tickets:
        flow.push(one)
    return flow


def take(flow: SessionFlow, now: float, window: int = 32) -> Ticket:
    one = flow.choose(window, now)
    flow.remove(one)
    return one


def test_a_cold_request_ages() -> None:
    """Eight times as much to compute: one that arrived a second ago goes first until the cold one has waited
    for eight seconds, and not after."""
    cold = ticket(tokens=8192, at=0.0)
    for now in range(2, 30):
        flow = flow_of(cold, ticket(tokens=1024, at=now - 1.0))
        assert (flow.choose(32, float(now)) is cold) == (now > 8)


@given(
    sizes=st.lists(st.integers(1, 60_000), min_size=1, max_size=60),
    waits=st.lists(st.floats(0, 50), min_size=1, max_size=60),
    window=st.integers(1, 6),
    leaving=st.sets(st.integers(0, 59)),
)
def test_nobody_is_overtaken_by_more_than_the_window(
    sizes: list[int], waits: list[float], window: int, leaving: set[int]
) -> None:
    """With arrivals between the turns, and some that leave: fewer than `window` later arrivals go before a
    request; all that do not leave are served, once."""
    flow, now = SessionFlow(Account(), 0.0), 0.0
    arrivals, served = [], []
    for index, (size, numbers) in enumerate(zip(sizes, count(), strict=False)):
        now += waits[index % len(waits)]
        one = ticket(tokens=size, at=now)
        arrivals.append(one)
        flow.push(one)
        if numbers in leaving:
            flow.remove(one)
            arrivals.remove(one)
        elif index % 2:
            served.append(take(flow, now, window))
        assert flow.length == len(list(flow)) == len(arrivals) - len(served)
    while flow.length:
        served.append(take(flow, now, window))
    assert sorted(one.request_id for one in served) == [one.request_id for one in arrivals]
    for place, one in enumerate(served):
        assert sum(other.request_id > one.request_id for other in served[:place]) < window
