"""One memory budget over engines that obey late, and die: together they never use more than there is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.link.messages import CacheCounters, Counters, MemoryState, Ready, SetMemoryLimit

BUDGET = 10_000
NAMES = ("a", "b", "c", "d")
_FLOORS = dict(zip(NAMES, (1000, 2500, 4000, 6000), strict=True))


@dataclass(slots=True)
class Simulated:
    """An engine process as its README says: prefixes fill what it may use, rows are never given up for a
    lower limit. `inbox` and `outbox` are the link."""

    floor: int
    limit: int
    asked: int
    rows: list[int] = field(default_factory=list)
    prefixes: int = 0
    busy_seconds: float = 0.0
    inbox: deque[SetMemoryLimit] = field(default_factory=deque)
    outbox: deque[Counters] = field(default_factory=deque)

    @property
    def least(self) -> int:
        return self.floor + sum(self.rows)

    @property
    def used(self) -> int:
        return self.least + self.prefixes

    def turn(self) -> None:
        """Apply one message, and report. Another may arrive in the middle of a long step."""
        if self.inbox:
            self.asked = self.inbox.popleft().limit_bytes
        self.limit = max(self.asked, min(self.limit, self.least))
        self.prefixes = max(0, min(self.prefixes, self.limit - self.least))
        self.report()

    def admit(self, size: int) -> None:
        if self.least + size <= self.limit:
            self.rows.append(size)
            self.prefixes = min(self.prefixes, self.limit - self.least)
        self.turn()

    def fill(self, size: int) -> None:
        self.prefixes = max(0, min(self.prefixes + size, self.limit - self.least))
        self.turn()

    def end(self) -> None:
        if self.rows:
            self.prefixes += self.rows.pop()
        self.turn()

    def report(self) -> None:
        state = MemoryState(
            used=self.used,
            limit=self.limit,
            floor=self.floor,
            least=self.least,
            kept=self.used,
            asked=self.asked,
        )
        counters = Counters(busy_seconds=self.busy_seconds, running=len(self.rows), guard=state)
        self.outbox.append(counters)


def ready_of(limit: int, floor: int) -> Ready:
    return Ready(1, "cpu", "test", 100, 1, 0, "none", memory_limit_bytes=limit, memory_floor_bytes=floor)


@dataclass(slots=True)
class World:
    """The fleet's part: it loads, delivers and reports."""

    budget: MemoryBudget = field(default_factory=MemoryBudget)
    engines: dict[str, Simulated] = field(default_factory=dict)
    loading: dict[str, Simulated] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    sent: int = 0
    now: float = 0.0

    def want(self, name: str) -> None:
        if name not in self.wanted | self.engines.keys() | self.loading.keys():
            self.wanted.add(name)
            self.budget.reserve(name, _FLOORS[name])

    def start(self) -> None:
        """Loads are made one at a time."""
        for name in sorted(self.wanted):
            if not self.loading and self.budget.may_load(name):
                given = self.budget.given(name)
                limit = BUDGET if given is None else given.limit_bytes
                self.loading[name] = Simulated(_FLOORS[name], limit, limit)
                self.wanted.remove(name)

    def loaded(self) -> None:
        for name, engine in self.loading.items():
            self.engines[name] = engine
            self.budget.ready(name, ready_of(engine.limit, engine.floor))
        self.loading = {}

    def rebalance(self) -> list[tuple[str, SetMemoryLimit]]:
        messages = self.budget.rebalance(self.now)
        for name, message in messages:
            self.engines[name].inbox.append(message)
        self.sent += len(messages)
        return messages

    def deliver(self, name: str) -> None:
        engine = self.engines[name]
        if engine.outbox:
            self.budget.observe(name, engine.outbox.popleft(), self.now)

    def quiesce(self, rounds: int = 30) -> None:
        """Everybody does what is due, until nothing moves."""
        for _ in range(rounds):
            self.now += 1.0
            self.rebalance()
            for name, engine in self.engines.items():
                engine.turn()
                while engine.outbox:
                    self.deliver(name)
            self.start()
            self.loaded()

    def load(self, *names: str) -> None:
        for name in names:
            self.want(name)
            self.quiesce()
            assert name in self.engines

    @property
    def limits(self) -> dict[str, int]:
        return {name: engine.limit for name, engine in self.engines.items()}


class Engines(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        # The first model is loaded at start, and its engine says what the budget is.
        self.world.want("a")
        self.world.start()
        self.world.loaded()
        self.world.want("b")

    names = st.sampled_from(NAMES)

    @property
    def live(self) -> list[str]:
        return sorted(self.world.engines)

    @rule(name=names)
    def want(self, name: str) -> None:
        self.world.want(name)

    @rule(seconds=st.sampled_from([0.0, 1.0, 10.0]), loaded=st.booleans())
    def fleet_looks(self, seconds: float, loaded: bool) -> None:
        self.world.now += seconds
        if loaded:
            self.world.loaded()
        self.world.rebalance()
        self.world.start()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), size=st.integers(0, 3000), what=st.sampled_from(["admit", "fill", "end", "turn"]))
    def engine_turns(self, data: st.DataObject, size: int, what: str) -> None:
        engine = self.world.engines[data.draw(st.sampled_from(self.live))]
        engine.busy_seconds += size / 1000
        match what:
            case "admit":
                engine.admit(size)
            case "fill":
                engine.fill(size)
            case "end":
                engine.end()
            case _:
                engine.turn()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def report_arrives(self, data: st.DataObject) -> None:
        self.world.deliver(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), again=st.booleans(), seldom=st.integers(0, 5))
    def dies_or_is_unloaded(self, data: st.DataObject, again: bool, seldom: int) -> None:
        """A dead one is loaded again with its part; an unloaded one is forgotten."""
        name = data.draw(st.sampled_from(self.live))
        if seldom:
            return
        del self.world.engines[name]
        if again:
            self.world.budget.ended(name)
            self.world.wanted.add(name)
        else:
            self.world.budget.forget(name)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), floor=st.integers(900, 6000))
    def learns_its_floor(self, data: st.DataObject, floor: int) -> None:
        """A chunk's peak is learned: the engine then has that much less for KV."""
        engine = self.world.engines[data.draw(st.sampled_from(self.live))]
        if floor + sum(engine.rows) <= engine.limit:
            engine.floor = floor
            engine.turn()

    @invariant()
    def never_over_the_budget(self) -> None:
        world = self.world
        processes = [*world.engines.values(), *world.loading.values()]
        assert sum(max(engine.used, engine.limit) for engine in processes) <= BUDGET
        assert sum(limit for _, limit in world.budget) <= BUDGET

    def teardown(self) -> None:
        """In the end each has the part that it should, or is named as one that does not fit."""
        world = self.world
        for engine in world.engines.values():
            engine.rows = []
        world.quiesce(1)
        world.now += 1000.0  # What they were busy with counts no more.
        world.quiesce()
        budget = world.budget
        assert world.wanted == set(budget.unplaced) & world.wanted
        for name, engine in world.engines.items():
            assert engine.limit == engine.asked == dict(budget)[name]
        sent = world.sent
        world.quiesce(3)
        assert world.sent == sent, "it would go on for ever"
        if world.engines and not world.wanted and not budget.unplaced:
            assert sum(world.limits.values()) >= BUDGET * 9 // 10


Engines.TestCase.settings = settings(
    deadline=None, max_examples=200, stateful_step_count=50, derandomize=True
)
TestEngines = pytest.mark.filterwarnings("ignore::UserWarning")(Engines.TestCase)


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
    assert message.limit_bytes <= BUDGET - _FLOORS["b"]
    assert message.sharers == 1
    world.rebalance()
    assert not world.budget.may_load("b"), "it was sent, but is not confirmed"
    world.engines["a"].turn()
    world.deliver("a")
    world.rebalance()
    given = world.budget.given("b")
    assert given is not None
    assert given.limit_bytes >= _FLOORS["b"]
    assert given.most_bytes == BUDGET - _FLOORS["a"]
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
    engine.turn()
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
