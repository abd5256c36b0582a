"""Which models are loaded: decisions one by one, and properties of a simulated machine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.residency import (
    LEAST_LOADED_SECONDS,
    TURN_SECONDS,
    ModelState,
    ResidencyDecision,
    Standing,
    decide,
)
from tests.examples import examples

BUDGET_BYTES = 100


def model(
    name: str, state: ModelState = ModelState.LOADED, need_bytes: int = 60, **fields: object
) -> Standing:
    plain = Standing(name, state, need_bytes, wanted_since=None, requests=0, used_at=0.0, loaded_at=0.0)
    return replace(plain, **fields)  # type: ignore[arg-type]


def asked(name: str, need_bytes: int = 60, since: float = 999.0) -> Standing:
    return model(name, ModelState.UNLOADED, need_bytes, wanted_since=since)


def at(now: float, *models: Standing, budget_bytes: int | None = BUDGET_BYTES) -> ResidencyDecision:
    return decide(models, budget_bytes, now)


def test_the_least_recently_used_idle_model_goes() -> None:
    old = model("old", need_bytes=50, used_at=500.0)
    young = model("young", need_bytes=50, used_at=900.0)
    decision = at(1000.0, young, old, asked("b", 40))
    assert (decision.unload, decision.drain, decision.load) == (("old",), (), None)


def test_nobody_goes_where_it_would_not_be_enough() -> None:
    idle = model("idle", need_bytes=30)
    serving = model("serving", need_bytes=70, requests=1, loaded_at=990.0)
    decision = at(1000.0, idle, serving, asked("b", 90))
    assert (decision.unload, decision.drain) == ((), ())
    assert decision.waits == {"b": "memory, which idle, serving has"}


def test_an_idle_one_is_unloaded_after_its_seconds() -> None:
    idle = model("a", used_at=100.0, idle_seconds=900.0)
    assert at(999.0, idle).unload == ()
    assert at(1000.0, idle).unload == ("a",)
    assert at(1000.0, replace(idle, pinned=True)).unload == ()
    assert at(1000.0, replace(idle, idle_seconds=None)).unload == ()


def test_who_can_never_fit_beside_pinned_ones_is_refused_with_the_numbers() -> None:
    decision = at(1000.0, model("a", pinned=True), asked("b"), asked("c", 30))
    assert decision.impossible == {"b": "the model 'b' needs at least 60 B, and 40 B are left beside a"}
    assert decision.load == "c"


def test_who_waited_longest_is_next_whatever_it_needs() -> None:
    small, large = asked("small", 10, since=950.0), asked("large", 90, since=900.0)
    decision = at(1000.0, model("a", need_bytes=50, loaded_at=995.0), small, large)
    assert decision.load is None
    assert decision.waits["small"] == "large is loaded first"


@dataclass
class Simulated:
    name: str
    need_bytes: int
    pinned: bool
    idle_seconds: float | None
    load_seconds: float
    state: ModelState = ModelState.UNLOADED
    queued: list[float] = field(default_factory=list)
    """When each came."""
    running: list[float] = field(default_factory=list)
    """When each ends."""
    used_at: float = -1e9
    loaded_at: float = -1e9
    due: float = 0.0
    """When its load or its end is complete."""
    loads: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def standing(self) -> Standing:
        return Standing(
            self.name,
            self.state,
            self.need_bytes,
            self.queued[0] if self.queued else None,
            len(self.running),
            self.used_at,
            self.loaded_at,
            self.pinned,
            self.idle_seconds,
        )

    def advance(self, now: float) -> None:
        self.running = [end for end in self.running if end > now]
        if self.state is ModelState.LOADING and now >= self.due:
            self.state, self.loaded_at = ModelState.LOADED, now
        if self.state is ModelState.UNLOADING and now >= self.due:
            self.state = ModelState.UNLOADED
        if self.state is ModelState.LOADED:
            self.waits += [now - since for since in self.queued]
            self.running += [now + 20.0 for _ in self.queued]
            self.queued.clear()
        if self.queued or self.running:
            self.used_at = now

    def obey(self, decision: ResidencyDecision, now: float) -> None:
        if self.name in decision.drain:
            assert self.state is ModelState.LOADED
            self.state = ModelState.DRAINING
        if self.name in decision.unload:
            assert not self.running, "a model that serves was taken"
            assert not self.pinned
            self.state, self.due = ModelState.UNLOADING, now + 2.0
        if self.name == decision.load:
            self.state, self.due = ModelState.LOADING, now + self.load_seconds
            self.loads.append(now)


_MODELS = st.lists(
    st.tuples(
        st.integers(10, 100),
        st.booleans(),
        st.sampled_from([None, 30.0, 300.0]),
        st.floats(1.0, 30.0),
        st.lists(st.integers(0, 900), max_size=12),
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=examples(50), deadline=None)
@given(_MODELS)
def test_the_machine_is_never_over_budget_and_nobody_starves(
    drawn: list[tuple[int, bool, float | None, float, list[int]]],
) -> None:
    models = [
        Simulated(str(number), need, pinned and need <= 40 and number == 0, idle, seconds)
        for number, (need, pinned, idle, seconds, _) in enumerate(drawn)
    ]
    refused = 0
    arrivals = sorted((float(at), number) for number, one in enumerate(drawn) for at in one[4])
    total = len(arrivals)
    now = 0.0
    while now < 4000.0:
        while arrivals and arrivals[0][0] <= now:
            models[arrivals.pop(0)[1]].queued.append(now)
        for one in models:
            one.advance(now)
        decision = decide([one.standing() for one in models], BUDGET_BYTES, now)
        for one in models:
            if one.name in decision.impossible:
                refused += len(one.queued)
                one.queued.clear()
            one.obey(decision, now)
        held = sum(one.need_bytes for one in models if one.state is not ModelState.UNLOADED)
        assert held <= BUDGET_BYTES
        now += 1.0
    waits = [wait for one in models for wait in one.waits]
    assert len(waits) + refused == total, "somebody still waits"
    # Before one's own turn each of the others has one, with its last requests (20 s), its end and a load.
    turn = TURN_SECONDS + 20.0 + 2.0 + 30.0 + 3.0
    assert max(waits, default=0.0) <= len(models) * turn
    for one in models:
        for first, second in zip(one.loads, one.loads[1:], strict=False):
            assert second - first >= LEAST_LOADED_SECONDS, "thrash"
