"""Engines that obey late, load, learn and die: together they never use more than the budget."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.examples import examples
from tests.scheduler.fleet.simulated_engines import BUDGET, NAMES, World


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
                engine.iterate()

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
            engine.iterate()

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
    deadline=None, max_examples=examples(50), stateful_step_count=50, derandomize=True
)
TestEngines = pytest.mark.filterwarnings("ignore::UserWarning")(Engines.TestCase)
