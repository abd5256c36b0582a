"""The engine dies: whoever is on board hears of it once, whoever waits is served by the next engine."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.errors import EngineLost, RequestFailed, Unavailable
from scheduler.events import Failed, Finished, Prefilling, TextDelta
from scheduler.link.messages import ScriptedPlan
from scheduler.link.supervisor import Condition, EngineNeverReady
from tests.cancellation.bench import Bench, Client
from tests.fakes.scheduling import answer, ask, running

LONG = 1000
COUNTERS = (
    "penstock_engine_steps_total",
    "penstock_generated_tokens_total",
    "penstock_prefilled_tokens_total",
)


def check_lost(client: Client) -> None:
    """Exactly one final event, which says that the engine was lost and that trying again helps."""
    [final] = client.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, EngineLost)
    assert final.error.retry_after_seconds
    assert client.events[-1] is final


def check_complete(client: Client) -> None:
    [final] = client.finals
    assert isinstance(final, Finished)
    assert len(client.text.split()) == final.usage.output_tokens


@trio_test
async def test_while_it_loads_nobody_is_harmed(autojump_clock: MockClock) -> None:
    """Requests that came before the first READY are queued, and finish on the engine that starts."""
    bench = Bench(max_slots=2)
    bench.observer.deaths_at_start = 1
    clients = [Client(ask(f"{number}")) for number in range(5)]
    async with trio.open_nursery() as people:
        for client in clients:
            await bench.come(people, client)
        async with running(bench.scheduler):
            await bench.scheduler.wait_idle()
            await trio.sleep(0.05)
            bench.check_nothing_is_left()
    for client in clients:
        check_complete(client)
    assert bench.launcher.starts == 2
    assert bench.outcomes() == {"length": 5}
    assert bench.sample("penstock_engine_deaths_total") >= 1


@trio_test
async def test_while_it_is_idle_nobody_notices(autojump_clock: MockClock) -> None:
    """The next request is served by the next engine."""
    bench = Bench()
    async with running(bench.scheduler):
        before = await answer(bench.scheduler, ask())
        bench.launcher.kill()
        await trio.testing.wait_all_tasks_blocked()
        statistics = bench.scheduler.statistics()
        assert (statistics.engine.condition, statistics.stalled_seconds) == (Condition.RESTARTING, 0.0)
        assert bench.sample("penstock_engine_up") == 0
        assert await answer(bench.scheduler, ask()) == before
        assert bench.sample("penstock_engine_up") == 1
    assert bench.outcomes() == {"length": 2}


@pytest.mark.parametrize("place", [Prefilling, TextDelta], ids=["prefilling", "decoding"])
@trio_test
async def test_with_a_request_in_its_slot(
    place: type[Prefilling | TextDelta], autojump_clock: MockClock
) -> None:
    """That one, and the one looked ahead, are lost; the queued ones finish."""
    bench = Bench(ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=4), lookahead=1)
    clients = [Client(ask(f"{number}" * 40, max_tokens=5)) for number in range(4)]
    async with running(bench.scheduler) as nursery:
        for client in clients:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: any(isinstance(event, place) for event in clients[0].events))
        assert (bench.scheduler.statistics().in_engine, bench.scheduler.statistics().queued) == (2, 2)
        bench.launcher.kill()
        await trio.testing.wait_all_tasks_blocked()
        assert (bench.scheduler.statistics().in_engine, bench.scheduler.statistics().queued) == (0, 2)
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    for client in clients[:2]:
        check_lost(client)
    for client in clients[2:]:
        check_complete(client)
    assert bench.observer.admitted == [1, 3, 4]
    assert bench.outcomes() == {"error": 2, "length": 2}


@trio_test
async def test_with_32_streams_on_board(autojump_clock: MockClock) -> None:
    """One error each; 8 queued ones finish; ids are never used again and counters never go back."""
    bench = Bench(max_slots=32, lookahead=0)
    clients = [Client(ask(f"{number}", max_tokens=LONG if number < 32 else 6)) for number in range(40)]
    seen: list[list[float]] = []

    async def watch() -> None:
        while True:
            seen.append([bench.sample(name) for name in COUNTERS])
            await trio.sleep(0.003)

    async with running(bench.scheduler) as nursery:
        nursery.start_soon(watch)
        for client in clients:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: all(client.text for client in clients[:32]))
        before = [bench.sample(name) for name in COUNTERS]
        bench.launcher.kill()
        await bench.scheduler.wait_idle()
        await answer(bench.scheduler, ask("afterwards"))
        after = [bench.sample(name) for name in COUNTERS]
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    for client in clients[:32]:
        check_lost(client)
    for client in clients[32:]:
        check_complete(client)
    assert bench.observer.admitted == list(range(1, 42))
    assert bench.launcher.starts == 2
    assert bench.outcomes() == {"error": 32, "length": 9}
    assert all(new > old for old, new in zip(before, after, strict=True))
    assert all(
        new >= old for earlier, later in pairwise(seen) for old, new in zip(earlier, later, strict=True)
    )


@trio_test
async def test_by_the_request_itself(autojump_clock: MockClock) -> None:
    """A prompt that kills the engine costs those on board; the service goes on."""
    bench = Bench(ScriptedPlan(step_seconds=0.01, die_token=ord("#")), max_slots=2, lookahead=0)
    neighbour, killer, queued = (Client(ask(text, max_tokens=9)) for text in ("a", "#", "b"))
    async with running(bench.scheduler) as nursery:
        for client in (neighbour, killer, queued):
            await bench.come(nursery, client)
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    check_lost(neighbour)
    check_lost(killer)
    check_complete(queued)


@trio_test
async def test_at_every_start_blocks_admission_until_one_starts(autojump_clock: MockClock) -> None:
    """After two failed restarts waiting is no longer kind: the queue is told, and so is who comes."""
    bench = Bench(lookahead=0)
    lost, queued = Client(ask("one", max_tokens=LONG)), Client(ask("two"))
    async with running(bench.scheduler) as nursery:
        for client in (lost, queued):
            await bench.come(nursery, client)
        await bench.wait_for(lambda: bool(lost.text))
        bench.observer.deaths_at_start = 4
        bench.launcher.kill()
        await bench.wait_for(lambda: bench.scheduler.statistics().engine.failed_starts == 1)
        assert queued.finals == []
        patient = await bench.come(nursery, Client(ask("three")))
        assert patient.refusal is None
        await bench.wait_for(lambda: bench.scheduler.statistics().engine.failed_starts == 2)
        await bench.wait_for(lambda: bool(queued.finals and patient.finals))
        for client in (queued, patient):
            [final] = client.finals
            assert isinstance(final, Failed)
            assert type(final.error) is Unavailable
            assert final.error.retry_after_seconds == 10
        assert bench.launcher.starts == 3
        refused = await bench.come(nursery, Client(ask("four")))
        assert type(refused.refusal) is Unavailable
        assert "the engine does not start" in str(refused.refusal)
        await bench.scheduler.wait_ready()
        assert bench.launcher.starts == 6
        served = Client(ask("five"))
        await served.follow(bench.scheduler)
    check_complete(served)
    check_lost(lost)
    assert bench.outcomes() == {"error": 3, "rejected": 1, "length": 1}


@trio_test
async def test_an_engine_that_never_starts_ends_the_service_and_everyone_hears(
    autojump_clock: MockClock,
) -> None:
    """`run` raises for the operator; a request that came meanwhile has its final event."""
    bench = Bench()
    bench.observer.deaths_at_start = 99
    client = Client(ask())
    async with trio.open_nursery() as nursery:
        await bench.come(nursery, client)
        with pytest.raises(EngineNeverReady):
            await bench.scheduler.run()
    assert bench.launcher.starts == 3
    assert len(client.finals) == 1
    assert bench.outcomes() == {"error": 1}


@trio_test
async def test_a_hung_engine_is_seen_by_its_lack_of_progress(autojump_clock: MockClock) -> None:
    """The stall grows with the clock while there is work on board, and ends with the engine's death."""
    bench = Bench(ScriptedPlan(step_seconds=0.01, hang_at_step=5))
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(ask(max_tokens=LONG)))
        await bench.wait_for(lambda: bench.observer.steps == 5)
        start = bench.scheduler.statistics().stalled_seconds
        assert start < 0.05
        for waited in (1, 2, 3):
            await trio.sleep(1)
            assert bench.scheduler.statistics().stalled_seconds == pytest.approx(start + waited)
        assert client.finals == []
        bench.launcher.kill()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.scheduler.statistics().stalled_seconds == 0
    check_lost(client)


@trio_test
async def test_an_idle_engine_is_not_stalled(autojump_clock: MockClock) -> None:
    """Silence is no stall while nothing is asked of it, nor at the moment when something is."""
    bench = Bench()
    async with running(bench.scheduler) as nursery:
        await trio.sleep(1000)
        assert bench.scheduler.statistics().stalled_seconds == 0
        await bench.come(nursery, Client(ask()))
        assert bench.scheduler.statistics().stalled_seconds < 0.05


@trio_test
async def test_a_slow_death_of_the_answer_is_no_death_of_the_engine(autojump_clock: MockClock) -> None:
    """A request that fails alone restarts nothing."""
    bench = Bench(ScriptedPlan(step_seconds=0.01, fail_sampler_token=ord("#")))
    async with running(bench.scheduler):
        _, final = await answer(bench.scheduler, ask("#"))
        assert isinstance(final, Failed)
        assert isinstance(final.error, RequestFailed)
        assert bench.launcher.starts == 1
        assert bench.sample("penstock_engine_deaths_total") == 0
