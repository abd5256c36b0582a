"""One memory budget over engines: who gets a part when, and what is sent."""

from __future__ import annotations

import pytest

from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.shared.messages import CacheCounters, Counters, MemoryState
from tests.scheduler.fleet.simulated_engines import BUDGET, FLOORS, World, ready_of


def test_one_engine_alone_gets_no_message() -> None:
    """It is loaded by the operator's option, as without a budget, and so it is after a death."""
    world = World()
    world.want("a")
    assert world.budget.may_load("a")
    assert world.budget.given("a") is None
    world.budget.ready("a", ready_of(BUDGET, 1000))
    assert world.budget.budget_bytes == BUDGET
    assert world.budget.rebalance(1.0) == []
    world.budget.ended("a")
    assert world.budget.rebalance(2.0) == []
    assert world.budget.may_load("a")
    assert world.budget.given("a") is None
    world.budget.ready("a", ready_of(BUDGET - 500, 1000))
    assert world.budget.budget_bytes == BUDGET - 500
    assert world.budget.rebalance(3.0) == []


def test_a_newcomer_is_loaded_when_its_part_is_free() -> None:
    world = World()
    world.load("a")
    world.want("b")
    assert not world.budget.may_load("b")
    [(name, message)] = world.rebalance()
    assert name == "a"
    assert message.limit_bytes <= BUDGET - FLOORS["b"]
    assert message.sharers == 1
    world.rebalance()
    assert not world.budget.may_load("b"), "it was sent, but is not confirmed"
    world.engines["a"].iterate()
    world.deliver("a")
    world.rebalance()
    given = world.budget.given("b")
    assert given is not None
    assert given.limit_bytes >= FLOORS["b"]
    assert given.most_bytes == BUDGET - FLOORS["a"]
    assert [message.sharers for _, message in world.rebalance()] == [2]


def test_rows_are_given_time_and_the_newcomer_waits() -> None:
    world = World()
    world.load("a")
    engine = world.engines["a"]
    for _ in range(4):
        engine.admit(2000)
    world.quiesce()
    assert world.budget.room_bytes() == 1000
    world.want("b")
    world.quiesce()
    assert "b" not in world.engines
    assert len(engine.rows) == 4
    engine.end()
    world.quiesce()
    assert "b" in world.engines
    assert len(engine.rows) == 3


def test_what_can_be_made_free() -> None:
    """What rows need, and what is being loaded, stays; one that would be unloaded counts as gone."""
    world = World()
    world.load("a", "b")
    world.engines["a"].admit(500)
    world.engines["b"].fill(4000)
    world.quiesce()
    assert world.budget.need_bytes("a") == 1500
    assert world.budget.room_bytes() == BUDGET - 1500 - 2500
    assert world.budget.room_bytes(without={"b"}) == BUDGET - 1500
    world.want("c")
    assert world.budget.need_bytes("c") == 4000


def test_an_engine_that_does_not_fit_is_named_and_holds_nothing() -> None:
    world = World()
    world.load("a", "c")
    world.want("d")
    world.quiesce()
    assert world.budget.unplaced == ("d",)
    assert dict(world.budget)["d"] == 0
    assert sum(world.limits.values()) >= BUDGET * 9 // 10


def test_the_busy_one_gets_the_idle_one_s_part_and_gives_it_back() -> None:
    world = World()
    world.load("a", "b")
    a, b = world.engines["a"], world.engines["b"]
    for _ in range(40):
        a.busy_seconds += 1.0
        a.fill(500)
        world.quiesce(1)
    assert a.limit > 7000
    for _ in range(200):
        b.busy_seconds += 1.0
        b.fill(500)
        world.quiesce(1)
    assert b.limit > 8500
    assert a.limit < 1500


def test_a_dead_engine_is_loaded_with_its_part() -> None:
    world = World()
    world.load("a", "b")
    part = world.limits["b"]
    del world.engines["b"]
    world.budget.ended("b")
    world.rebalance()
    given = world.budget.given("b")
    assert given is not None
    assert given.limit_bytes == pytest.approx(part, rel=0.07)


def test_an_engine_that_was_not_reserved_gets_what_is_free() -> None:
    """An operator adds one: it is loaded if there is room, and has nobody else's memory."""
    world = World()
    world.load("a", "b")
    budget = world.budget
    budget.forget("b")
    free = BUDGET - world.limits["a"]
    given = budget.given("another")
    assert given is not None
    assert given.limit_bytes == free
    budget.ready("another", ready_of(free, 800))
    crowded = budget.given("third")
    assert crowded is not None
    assert crowded.limit_bytes == 1, "it is refused by the engine, with the numbers"


def test_reports_of_an_engine_that_was_forgotten_are_ignored() -> None:
    world = World()
    world.load("a", "b")
    world.budget.forget("b")
    world.budget.observe("b", Counters(), 1.0)
    world.budget.ended("b")
    assert [name for name, _ in world.budget] == ["a"]


def test_a_first_engine_that_dies_keeps_nobody_from_being_the_first() -> None:
    """Nothing is known of the device yet, and no process has any of it."""
    budget = MemoryBudget()
    budget.reserve("a", 1000)
    assert budget.given("a") is None
    budget.reserve("b", 1000)
    assert not budget.may_load("b")
    budget.ended("a")
    assert budget.may_load("b")


def test_an_engine_gets_one_message_at_a_time() -> None:
    """One that was raised and lowered in the same step may use the higher limit for that step, and nobody
    counts on the lower one before it is confirmed."""
    world = World()
    world.load("a", "b")
    del world.engines["b"]
    world.budget.forget("b")
    [(_, raised)] = world.rebalance()
    assert raised.limit_bytes == BUDGET
    world.want("b")
    for _ in range(3):
        assert world.rebalance() == []
        assert not world.budget.may_load("b")
    world.quiesce()
    assert world.limits.keys() == {"a", "b"}


def test_an_idle_engine_that_uses_more_than_its_part_is_asked_again() -> None:
    """It sends nothing by itself: perhaps its memory has come back meanwhile."""
    world = World()
    world.load("a", "b")
    engine = world.engines["a"]
    limit = engine.limit
    engine.iterate()
    late = engine.outbox.pop()
    state = MemoryState(used=limit + 10, limit=limit, floor=1000, least=1000, kept=1000, asked=limit)
    world.budget.observe("a", Counters(guard=state), world.now)
    asked: list[str] = []
    for _ in range(11):
        world.now += 1.0
        asked += [name for name, _ in world.budget.rebalance(world.now)]
    assert asked == ["a", "a"]
    world.budget.observe("a", late, world.now)
    world.now += 10.0
    assert world.budget.rebalance(world.now) == []


def test_engines_without_a_limit_get_none() -> None:
    """As the scripted ones, which take no memory."""
    budget = MemoryBudget()
    for name in ("a", "b"):
        budget.reserve(name, 0)
        assert budget.may_load(name)
        assert budget.given(name) is None
        budget.ready(name, ready_of(0, 0))
        budget.observe(name, Counters(cache=CacheCounters()), 1.0)
    assert budget.budget_bytes == 0
    assert budget.rebalance(5.0) == []
    assert budget.room_bytes() is None


def test_engines_of_one_model_that_start_together_divide_the_budget() -> None:
    """As many as the first one was said to be."""
    budget = MemoryBudget(sharers=2)
    for name in ("a/0", "a/1"):
        budget.reserve(name, 1000)
        assert budget.given(name) is None
    budget.ready("a/1", ready_of(4000, 1000))
    assert budget.budget_bytes == 8000
    assert dict(budget) == {"a/0": 4000, "a/1": 4000}
    assert budget.rebalance(1.0) == []
    budget.ready("a/0", ready_of(4000, 1000))
    assert budget.rebalance(2.0) == []
