"""A request's deadline may pass at any moment; it ends there, once, with an error of its own, and its slot is
free within two steps."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.errors import DeadlineExceeded, QueueTimeout
from scheduler.events import Failed, Finished, Prefilling, TextDelta
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.cancellation.test_places import check_nothing_left
from tests.examples import examples
from tests.fakes.scheduling import ask, running

SLOW_PREFILL = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=4)
LONG = 1000


def ended_by(client: Client, kind: type[DeadlineExceeded], words: str) -> None:
    """Exactly one final event, the last, which names the limit."""
    [final] = client.finals
    assert isinstance(final, Failed)
    assert type(final.error) is kind
    assert words in final.error.message
    assert client.events[-1] is final


@trio_test
async def test_the_services_own_patience_in_the_queue_is_another_error(autojump_clock: MockClock) -> None:
    """The client may retry, and gets the time."""
    bench = Bench(lookahead=0, queue_seconds=0.3)
    async with running(bench.scheduler) as nursery:
        await bench.come(nursery, Client(ask("one", max_tokens=100)))
        waiting = await bench.come(nursery, Client(ask("two", timeout_seconds=50)))
        await trio.sleep(2)
        await check_nothing_left(bench)
    ended_by(waiting, QueueTimeout, "0.3 s")
    [final] = waiting.finals
    assert isinstance(final, Failed)
    assert final.error.retry_after_seconds
    assert bench.observer.admitted == [1]
    assert bench.outcomes() == {"deadline": 1, "length": 1}


@pytest.mark.parametrize("place", ["prefilling", "decoding"])
@pytest.mark.parametrize("limit", ["the client's", "the service's"])
@trio_test
async def test_while_it_is_in_a_slot(place: str, limit: str, autojump_clock: MockClock) -> None:
    """The reader has the answer so far and then the error; the next request has the slot within two steps."""
    seconds = 0.1 if place == "prefilling" else 0.5
    of_the_client = limit == "the client's"
    bench = Bench(SLOW_PREFILL, max_running_seconds=None if of_the_client else seconds)
    request = ask("x" * 60, max_tokens=LONG, timeout_seconds=seconds if of_the_client else None)
    async with running(bench.scheduler) as nursery:
        hurried = await bench.come(nursery, Client(request))
        waiting = await bench.come(nursery, Client(ask("x", max_tokens=1)))
        await bench.wait_for(lambda: bool(hurried.finals))
        steps = bench.observer.steps
        await trio.sleep(1)
        await check_nothing_left(bench)
    kinds = {type(event) for event in hurried.events[:-1]}
    assert kinds == ({Prefilling} if place == "prefilling" else {Prefilling, TextDelta})
    ended_by(hurried, DeadlineExceeded, "timeout of" if of_the_client else "generated for")
    assert bench.observer.left_at[1] - steps <= 2
    assert bench.observer.joined_at[2] - steps <= 2
    assert isinstance(waiting.finals[0], Finished)
    assert bench.outcomes() == {"deadline": 1, "length": 1}


@settings(max_examples=examples(40), deadline=None)
@given(
    timeouts=st.lists(st.none() | st.floats(0.001, 0.6), min_size=1, max_size=8),
    stays=st.lists(st.floats(0, 0.6), min_size=1, max_size=3),
    limits=st.tuples(st.none() | st.floats(0.01, 0.3), st.none() | st.floats(0.01, 0.3)),
    lookahead=st.integers(0, 3),
    death=st.none() | st.floats(0, 0.4),
)
def test_at_any_moment_among_others(
    timeouts: list[float | None],
    stays: list[float],
    limits: tuple[float | None, float | None],
    lookahead: int,
    death: float | None,
) -> None:
    """With clients that leave, limits of the service and an engine that dies: one outcome and at most one
    final event each, never after its deadline, and nothing remains."""

    async def scenario() -> None:
        bench = Bench(
            SLOW_PREFILL,
            lookahead=lookahead,
            max_slots=2,
            queue_seconds=limits[0],
            max_running_seconds=limits[1],
        )
        clients: list[tuple[float | None, Client, float]] = []

        async def visit(number: int, allowed: float | None) -> None:
            request = ask(f"{number}", max_tokens=20, timeout_seconds=allowed)
            client = Client(request, stays=stays[number] if number < len(stays) else math.inf)
            began = trio.current_time()
            await client.follow(bench.scheduler)
            clients.append((allowed, client, trio.current_time() - began))

        async with running(bench.scheduler):
            async with trio.open_nursery() as people:
                for number, allowed in enumerate(timeouts):
                    people.start_soon(visit, number, allowed)
                if death is not None:
                    await trio.sleep(death)
                    bench.launcher.kill()
            await bench.scheduler.wait_idle()
            await trio.sleep(1)
            bench.check_nothing_is_left()
        assert sum(bench.outcomes().values()) == len(timeouts)
        for allowed, client, took in clients:
            assert len(client.finals) <= 1
            assert client.finals or client.refusal or client.scope.cancelled_caught
            assert allowed is None or took <= allowed + 0.001

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
