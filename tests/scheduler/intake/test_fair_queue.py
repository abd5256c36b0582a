"""The fair queue: any order of operations, priorities, and the estimated place."""

from __future__ import annotations

from collections import Counter
from itertools import count, cycle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.config import FairnessConfig
from scheduler.intake.fair_queue import FairQueue
from scheduler.intake.service_ledger import Ticket
from tests.examples import examples
from tests.scheduler.intake.tickets import Server, sizes, ticket


class QueueMachine(RuleBasedStateMachine):
    """Push, pop, remove, observe and charge in any order, against a plain set."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = FairQueue(FairnessConfig(patience_seconds=30.0, window=3, aging_seconds=5.0))
        self.waiting: dict[int, Ticket] = {}
        self.running: dict[int, tuple[Ticket, int, int]] = {}
        self.ids = count(1)
        self.now = 0.0

    @rule(
        tenant=st.sampled_from("ABC"),
        session=st.sampled_from("xyz"),
        priority=st.integers(-2, 2),
        tokens=sizes,
        output=st.integers(0, 500),
    )
    def push(self, tenant: str, session: str, priority: int, tokens: int, output: int) -> None:
        one = Ticket(next(self.ids), tenant, session, priority, tokens, tokens, output, self.now)
        self.queue.push(one)
        self.waiting[one.request_id] = one

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        one = self.queue.pop(self.now)
        assert one is self.waiting.pop(one.request_id)
        self.running[one.request_id] = (one, 0, 0)

    @precondition(lambda self: not self.waiting)
    @rule()
    def nothing_to_pop(self) -> None:
        with pytest.raises(KeyError):
            self.queue.pop(self.now)

    @rule(request_id=st.integers(1, 40))
    def remove(self, request_id: int) -> None:
        assert self.queue.remove(request_id, self.now) is self.waiting.pop(request_id, None)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100), tokens=st.integers(0, 4000), output=st.integers(0, 2000))
    def learn(self, which: int, tokens: int, output: int) -> None:
        request_id = list(self.running)[which % len(self.running)]
        one, uncached, generated = self.running[request_id]
        uncached, generated = max(uncached, tokens), max(generated, output)
        self.queue.observe(one, uncached, generated, self.now)
        self.running[request_id] = (one, uncached, generated)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 100))
    def charge_actual(self, which: int) -> None:
        request_id = list(self.running)[which % len(self.running)]
        one, uncached, generated = self.running.pop(request_id)
        self.queue.charge_actual(one, uncached, generated, self.now)

    @invariant()
    def it_holds_what_was_pushed_and_nothing_else(self) -> None:
        assert len(self.queue) == len(self.waiting)

    @invariant()
    def the_statistics_add_up(self) -> None:
        flows = self.queue.statistics(self.now)
        assert sum(flow.requests for flow in flows) == len(self.waiting)
        assert sum(flow.prompt_tokens for flow in flows) == sum(
            t.prompt_tokens for t in self.waiting.values()
        )
        keys = [(flow.priority, flow.tenant, flow.session) for flow in flows]
        assert sorted(set(keys)) == sorted({(t.priority, t.tenant, t.session) for t in self.waiting.values()})
        assert [key[0] for key in keys] == sorted(key[0] for key in keys)
        assert all(flow.tenant_service_tokens >= -1e-6 for flow in flows)


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)


# --- priorities


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


def test_an_aged_flood_does_not_pass_a_quiet_tenant() -> None:
    """The backlog of a flood is old, and age counts for bands: a new tenant's request with the same priority
    still goes before it."""
    server = Server(FairnessConfig(aging_seconds=1.0), seconds_per_token=0.01)
    server.push(*(ticket("flood", tokens=100) for _ in range(300)))
    for _ in range(100):
        server.push(ticket("urgent", priority=-3, tokens=100, at=server.now))
        server.serve()
    quiet = ticket("quiet", at=server.now)
    server.push(quiet)
    assert quiet in [server.serve() for _ in range(4)]


# --- costs


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
