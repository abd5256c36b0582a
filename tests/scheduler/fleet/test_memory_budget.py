"""One memory budget over engines: which part each gets, for how long, and that parts never exceed it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scheduler.engine.budget.limits import divided, part_of
from scheduler.fleet.memory_budget import MemoryBudget
from scheduler.shared.messages import MemoryPart, Ready
from tests.examples import examples

BUDGET = 10_000
NAMES = ("a", "b", "c", "d")


@dataclass
class _Engine:
    name: str
    running: bool = False


class _Pool(list[_Engine]):
    """A model's engines, as the budget sees them."""

    @property
    def names(self) -> list[str]:
        return [one.name for one in self]


def _pool(engines: int, *, running: bool = False) -> Any:
    return _Pool(_Engine(str(number), running) for number in range(engines))


def _need(nbytes: int, device: str | None) -> int:
    return nbytes


class Engines(RuleBasedStateMachine):
    """Processes that are loaded, die, and are added and unloaded at any moment, as the fleet and operators
    may have it. `limits`: of each living process; None while it loads."""

    @initialize(
        needs=st.tuples(*[st.integers(0, 6000)] * 4),
        engines=st.tuples(*[st.sampled_from([1, 1, 2, 3])] * 4),
        pinned=st.sets(st.sampled_from(NAMES)),
    )
    def begin(self, needs: tuple[int, ...], engines: tuple[int, ...], pinned: set[str]) -> None:
        self.needs = dict(zip(NAMES, needs, strict=True))
        self.budget = MemoryBudget({name: partial(_need, need) for name, need in self.needs.items()})
        self.pools = {name: _pool(number) for name, number in zip(NAMES, engines, strict=True)}
        for name, pool in self.pools.items():
            self.budget.follow(name, pool, is_pinned=name in pinned)
        self.limits: dict[tuple[str, str], int] = {}
        self.wholes: dict[tuple[str, str], int] = {}
        self.loading: set[tuple[str, str]] = set()

    def start(self, model: str, engine: str) -> None:
        part = self.budget.given(model, engine)
        assert part is not None
        sharers = part.sharers if not part.whole_bytes else 1
        limit, whole, _ = divided(BUDGET // sharers, part, sharers, self.needs[model], on_cpu=True)
        self.limits[model, engine], self.wholes[model, engine] = limit, whole
        self.loading.add((model, engine))

    def free(self, place: tuple[str, str]) -> None:
        next(one for one in self.pools[place[0]] if one.name == place[1]).running = False
        self.budget.free(*place)

    def loaded(self, model: str) -> bool:
        return any(name == model for name, _ in self.limits)

    @rule(name=st.sampled_from(NAMES))
    def loads(self, name: str) -> None:
        """Only where what it needs is free, and nothing else is being loaded, as `decide` has it. Then each
        of its engines gets what it needs."""
        if self.loaded(name) or self.loading:
            return
        held = sum(self.budget.need_bytes(other) for other in NAMES if self.loaded(other))
        budget = self.budget.budget_bytes if self.limits else BUDGET
        if budget is not None and self.budget.need_bytes(name) <= budget - held:
            for engine in self.pools[name]:
                engine.running = True
            for engine in self.pools[name].names:
                self.start(name, engine)
                assert self.limits[name, engine] >= self.needs[name]

    @rule(data=st.data())
    def gets_ready(self, data: st.DataObject) -> None:
        if self.loading:
            place = data.draw(st.sampled_from(sorted(self.loading)))
            self.loading.remove(place)
            self.budget.ready(
                *place,
                Ready(
                    *(1, "cpu", "test", 100, 1, 0, "none"),
                    memory_limit_bytes=self.limits[place],
                    memory_floor_bytes=self.needs[place[0]],
                    memory_whole_bytes=self.wholes[place],
                ),
            )

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), again=st.booleans())
    def dies_or_leaves(self, data: st.DataObject, again: bool) -> None:
        """One that dies is loaded again with what it had."""
        place = data.draw(st.sampled_from(sorted(self.limits)))
        before = self.limits.pop(place)
        self.loading.discard(place)
        if again:
            self.start(*place)
            assert self.limits[place] == before
        else:
            self.free(place)

    @rule(name=st.sampled_from(NAMES))
    def is_unloaded(self, name: str) -> None:
        for place in [place for place in self.limits if place[0] == name]:
            del self.limits[place]
            self.loading.discard(place)
            self.free(place)

    @rule(name=st.sampled_from(NAMES))
    def is_added(self, name: str) -> None:
        """An operator asks whether there is memory or not."""
        pool = self.pools[name]
        if len(pool) < 5 and self.loaded(name):
            pool.append(_Engine(str(len(pool)), running=True))
            self.start(name, pool[-1].name)

    @invariant()
    def never_over_the_budget(self) -> None:
        if hasattr(self, "limits"):
            assert sum(self.limits.values()) <= BUDGET


Engines.TestCase.settings = settings(deadline=None, max_examples=examples(100), stateful_step_count=40)
TestEngines = Engines.TestCase


@settings(deadline=None, max_examples=examples(300))
@given(
    pinned=st.lists(st.integers(1, 60), max_size=3),
    others=st.lists(st.integers(1, 100), min_size=1, max_size=5),
)
def test_what_fits_beside_pinned_models_fits_beside_their_parts(pinned: list[int], others: list[int]) -> None:
    """So none is refused for ever because another one came first."""
    if sum(pinned) > 100:
        return
    free, left = 100_000, [one * 1000 for one in pinned]
    others = sorted((one * 1000 for one in others), reverse=True)
    while left:
        need, *left = left
        part, _ = part_of(free, need, [*left, *others])
        assert part >= need
        free -= part
    for other in others:
        assert other <= free or other + 1000 * sum(pinned) > 100_000


def test_what_is_not_followed_by_another_process_is_free() -> None:
    """Also where there was none yet, and for engines that start together. Room is left for pinned models
    first, then for large ones."""
    budget = MemoryBudget({name: partial(_need, 1000 * (NAMES.index(name) + 1)) for name in NAMES})
    pools = {name: _pool(2, running=True) for name in NAMES}
    pools["a"].append(_Engine("2"))
    for name, pool in pools.items():
        budget.follow(name, pool, is_pinned=name == "b")
    found = MemoryPart(sharers=2, beside=((4000, 4000), (8000, 8000), (6000, 6000)))
    assert budget.given("a", "0") == budget.given("a", "1") == found
    assert budget.parts == {("a", "0"): 0, ("a", "1"): 0}, "one that cannot be started gets none"
    budget.free("a", "1")
    assert budget.parts == {("a", "0"): 0}
    assert budget.given("b", "0") == MemoryPart(0, 1, 3), "nothing is free before the first one has reported"
