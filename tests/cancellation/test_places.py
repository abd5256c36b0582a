"""A client may leave at any moment; its slot is free within two steps and nothing of it remains."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.events import Prefilling, TextDelta
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.fakes.scheduling import answer, ask, running

SLOW_PREFILL = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=4)
LONG = 1000


async def check_nothing_left(bench: Bench) -> None:
    """Wait until nothing is left, which must not take long, and then check every table."""
    with trio.fail_after(1):
        await bench.scheduler.wait_idle()
    await trio.sleep(0.05)
    bench.check_nothing_is_left()


@pytest.mark.parametrize("place", ["prefilling", "decoding"])
@trio_test
async def test_while_it_is_in_a_slot(place: str, autojump_clock: MockClock) -> None:
    """The row is gone, and the next in line is in its slot, within two steps."""
    bench = Bench(SLOW_PREFILL)
    async with running(bench.scheduler) as nursery:
        leaving = await bench.come(nursery, Client(ask("x" * 60, max_tokens=LONG)))
        waiting = await bench.come(nursery, Client(ask("next", max_tokens=2)))
        kind = Prefilling if place == "prefilling" else TextDelta
        await bench.wait_for(lambda: any(isinstance(event, kind) for event in leaving.events))
        assert bool(leaving.text) is (place == "decoding")
        steps = bench.observer.steps
        leaving.leave()
        await check_nothing_left(bench)
    assert bench.observer.left_at[1] - steps <= 2
    assert bench.observer.joined_at[2] - steps <= 2
    assert leaving.finals == []
    assert len(waiting.finals) == 1
    assert bench.outcomes() == {"cancelled": 1, "length": 1}


async def _alone(text: str, max_tokens: int) -> tuple[str, object]:
    """Return what a request gets with the engine to itself."""
    bench = Bench()
    async with running(bench.scheduler):
        return await answer(bench.scheduler, ask(text, max_tokens=max_tokens))


@settings(max_examples=examples(25), deadline=None)
@given(
    moments=st.lists(st.floats(0, 0.3), min_size=1, max_size=8),
    lookahead=st.integers(0, 3),
    max_slots=st.integers(1, 3),
)
def test_at_any_moment_among_others(moments: list[float], lookahead: int, max_slots: int) -> None:
    """Several leave at any time; the one that stays gets what it would have got alone."""

    async def scenario() -> None:
        expected, _ = await _alone("the one who stays", 12)
        bench = Bench(SLOW_PREFILL, lookahead=lookahead, max_slots=max_slots)
        async with running(bench.scheduler) as nursery:
            staying = Client(ask("the one who stays", max_tokens=12))
            for number, moment in enumerate(moments):
                client = Client(ask(f"leaving {number}", max_tokens=6), stays=moment)
                nursery.start_soon(client.follow, bench.scheduler)
            await staying.follow(bench.scheduler)
            await bench.scheduler.wait_idle()
            await check_nothing_left(bench)
        assert staying.text == expected
        assert sum(bench.outcomes().values()) == len(moments) + 1

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
