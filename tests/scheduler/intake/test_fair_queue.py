"""The fair queue: priorities. Its order of service: `test_equal_shares.py`, `test_starvation.py`."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.config import FairnessConfig
from tests.scheduler.intake.tickets import Server, ticket


@given(priorities=st.lists(st.integers(-10, 10), min_size=1, max_size=40))
def test_a_lower_priority_number_goes_first(priorities: list[int]) -> None:
    """vLLM's sign. Strictly, before aging; among equals, in the order of arrival."""
    server = Server(seconds_per_token=0.0)
    server.push(*(ticket(priority=priority) for priority in priorities))
    served = [server.serve() for _ in priorities]
    assert [one.priority for one in served] == sorted(priorities)
    assert served == sorted(served, key=lambda one: (one.priority, one.request_id))


@settings(deadline=None)
@given(priority=st.integers(-9, 10), aging=st.floats(1, 20))
def test_a_request_of_low_priority_competes_after_the_time_that_its_distance_takes(
    priority: int, aging: float
) -> None:
    """While urgent ones arrive without end: never before, and then within the second turn."""
    server = Server(FairnessConfig(aging_seconds=aging), seconds_per_token=0.01)
    low = ticket("low", priority=priority)
    server.push(low)
    turns = 0
    bound = (priority + 10) * aging
    while low not in server.served:
        server.push(ticket("urgent", priority=-10, at=server.now))
        if server.now >= bound:
            turns += 1
        one = server.serve()
        assert one is not low or server.now - 1.0 >= bound
        assert turns <= 2


def test_a_tenant_gets_no_more_by_spreading_its_requests_over_priorities() -> None:
    """With accounts of their own for each band it got eleven shares: the other 40 % instead of half."""
    server, waiting, served = Server(FairnessConfig(aging_seconds=5.0), 0.001), Counter[str](), Counter[str]()
    spread = cycle(range(11))
    for _ in range(400):
        while waiting["A"] < 22:
            server.push(ticket("A", "s", priority=next(spread), tokens=500, at=server.now))
            waiting["A"] += 1
        while waiting["B"] < 2:
            server.push(ticket("B", "s", priority=0, tokens=500, at=server.now))
            waiting["B"] += 1
        tenant = server.serve().tenant
        waiting[tenant] -= 1
        served[tenant] += 1
    assert served["B"] >= 190
