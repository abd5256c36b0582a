"""Fairness for clients: whole scheduler, scripted engine, virtual time. One slot and no lookahead, so that
only the queue causes waits."""

from __future__ import annotations

from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.errors import QueueFull
from scheduler.events import Failed, Finished
from scheduler.service import Scheduler
from tests.cancellation.bench import Bench, Client
from tests.examples import examples
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running

# One step of prefill and one for each token, 10 ms each.
TOKENS = 9
ONE_ANSWER = 0.1


async def wait_of(bench: Bench | Scheduler, **fields: Any) -> float:
    """Return the seconds from the request to the end of the answer."""
    began = trio.current_time()
    scheduler = bench.scheduler if isinstance(bench, Bench) else bench
    _, final = await answer(scheduler, ask("x", max_tokens=TOKENS, **fields))
    assert isinstance(final, Finished)
    return trio.current_time() - began


@settings(max_examples=examples(4), deadline=None)
@given(
    flood=st.integers(1, 40),
    sessions=st.integers(1, 20),
    quiet=st.integers(1, 4),
    slots=st.integers(1, 4),
    lookahead=st.integers(0, 4),
    engines=st.sampled_from([1, 2, 4]),
)
def test_whatever_the_flood_the_others_wait_for_a_turn_each(
    flood: int, sessions: int, quiet: int, slots: int, lookahead: int, engines: int
) -> None:
    """With several quiet tenants, slots, a lookahead and engines: the bound does not depend on the flood's
    size."""

    async def scenario() -> None:
        scheduler = make_scheduler(
            lambda number: LoopbackLauncher(), max_slots=slots, lookahead=lookahead, engines=engines
        )
        waits: list[float] = []

        async def ask_for_ever(tenant: str, session: str) -> None:
            while True:
                await wait_of(scheduler, tenant=tenant, session=session)

        async def ask_sometimes(tenant: str) -> None:
            for _ in range(4):
                await trio.sleep(0.37)
                waits.append(await wait_of(scheduler, tenant=tenant))

        async with running(scheduler) as nursery:
            for number in range(flood):
                nursery.start_soon(ask_for_ever, "flood", str(number % sessions))
            await trio.sleep(2)
            async with trio.open_nursery() as people:
                for number in range(quiet):
                    people.start_soon(ask_sometimes, f"quiet {number}")
            nursery.cancel_scope.cancel()
        # The engine's lookahead, then a turn of every tenant, on `slots` slots, and its own answer. A request
        # that an engine has is not moved to another one whose slot becomes free sooner.
        turns = (slots + lookahead + quiet + 1) / slots + 2
        assert max(waits) <= turns * ONE_ANSWER + 0.001

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_a_flood_that_fills_the_queue_loses_its_newest_to_another_tenant(
    autojump_clock: MockClock,
) -> None:
    """Until the other would have as many. The flood's own next is refused, as without tenants."""
    bench = Bench(lookahead=0, max_queue=3)
    async with running(bench.scheduler) as nursery:
        await bench.come(nursery, Client(ask("running", tenant="A")))
        clients = [
            await bench.come(nursery, Client(ask(f"{number}", tenant=tenant)))
            for number, tenant in enumerate("AAAABB")
        ]
        await bench.scheduler.wait_idle()
    refused = [type(client.refusal) for client in clients]
    assert refused == [type(None), type(None), type(None), QueueFull, type(None), QueueFull]
    (lost,) = clients[2].finals
    assert isinstance(lost, Failed)
    assert isinstance(lost.error, QueueFull)
    assert lost.error.retry_after_seconds
    assert bench.outcomes() == {"length": 4, "error": 1, "rejected": 2}


@trio_test
async def test_an_answer_longer_than_expected_is_charged_while_it_grows(autojump_clock: MockClock) -> None:
    """Not at its end only: until then its tenant would be served as if it were cheap."""
    bench = Bench(lookahead=0)
    async with running(bench.scheduler) as nursery:
        await bench.come(nursery, Client(ask("x", max_tokens=3000, tenant="T")))
        await bench.come(nursery, Client(ask("waits", tenant="T")))
        attained = []
        for _ in range(3):
            await trio.sleep(8)
            (flow,) = bench.scheduler.operations.report().queue.flows
            attained.append(flow.tenant_service_tokens)
        # 256 tokens of output were expected; 800, 1600 and 2400 came, decaying with a half-life of 60 s.
        assert attained[0] > 2 * 700
        assert attained == sorted(attained)
        assert attained[2] > 2 * 1900
        nursery.cancel_scope.cancel()
