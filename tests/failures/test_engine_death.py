"""The engine dies, hangs, or does not start, and the service goes on. `test_resume.py` tests its streams."""

from __future__ import annotations

from typing import Never

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.engines import engine
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.errors import EngineLost, RequestFailed, Unavailable
from scheduler.events import Failed, Finished
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import Faults
from tests.fakes.scheduling import answer, ask, running

LONG = 1000
HANGS = Faults(hang_at_step=7)
"""With a prompt of one step, after five tokens."""


def check_complete(client: Client) -> None:
    [final] = client.finals
    assert isinstance(final, Finished)
    assert len(client.text.split()) == final.usage.output_tokens


@trio_test
async def test_at_every_start_blocks_admission_until_one_starts(autojump_clock: MockClock) -> None:
    """After two failed restarts new requests fail with the reason. Those that wait, and those that are partly
    answered, outlive as many as an operator allows."""
    bench = Bench(lookahead=0)
    resumed, queued = Client(ask("one", max_tokens=40)), Client(ask("two"))
    async with running(bench.scheduler) as nursery:
        for client in (resumed, queued):
            await bench.come(nursery, client)
        await bench.wait_for(lambda: bool(resumed.text))
        bench.observer.deaths_at_start = 4
        bench.launcher.kill()
        await bench.wait_for(lambda: bench.scheduler.operations.statistics().engine.failed_starts == 1)
        assert queued.finals == []
        patient = await bench.come(nursery, Client(ask("three")))
        assert patient.refusal is None
        await bench.wait_for(lambda: bench.scheduler.operations.statistics().engine.failed_starts == 2)
        assert queued.finals == patient.finals == []
        refused = await bench.come(nursery, Client(ask("four")))
        assert type(refused.refusal) is Unavailable
        assert "the engine does not start" in str(refused.refusal)
        await bench.scheduler.wait_ready()
        assert bench.launcher.starts == 6
        served = Client(ask("five"))
        await served.follow(bench.scheduler)
    for client in (served, resumed, queued, patient):
        check_complete(client)
    assert bench.outcomes() == {"rejected": 1, "length": 4}


@trio_test
async def test_an_engine_that_never_starts_ends_the_service_and_everyone_hears(
    autojump_clock: MockClock,
) -> None:
    """`run` raises for the operator; a request that arrived meanwhile has its final event."""
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
async def test_a_bug_in_recovery_fails_the_requests_on_board_and_the_service_goes_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request of the lost engine gets a final event; the next engine serves the queue and newcomers."""
    bench = Bench(max_slots=2, lookahead=0)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "count_death", raises)
        async with running(bench.scheduler) as nursery:
            clients = [await bench.come(nursery, Client(ask(f"{n}", max_tokens=20))) for n in range(3)]
            await bench.wait_for(lambda: all(client.text for client in clients[:2]))
            bench.launcher.kill()
            await bench.scheduler.wait_idle()
            await answer(bench.scheduler, ask("afterwards"))
            await trio.sleep(0.05)
            bench.check_nothing_is_left()
    for client in clients[:2]:
        [final] = client.finals
        assert isinstance(final, Failed)
        assert isinstance(final.error, EngineLost)
    check_complete(clients[2])
    assert bench.launcher.starts == 2
    assert bench.outcomes() == {"error": 2, "length": 2}


def raises(*_: object) -> Never:
    raise ValueError("a bug in recovery")


@trio_test
async def test_a_hung_engine_is_seen_by_its_lack_of_progress_and_replaced(autojump_clock: MockClock) -> None:
    """The stall grows with the clock while there is work on board; at its limit the engine is declared
    hung."""
    bench = Bench(faults=HANGS, stall_seconds=60)
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(ask(max_tokens=9)))
        await bench.wait_for(lambda: bench.observer.steps == 7)
        start = bench.scheduler.operations.statistics().stalled_seconds
        assert start < 0.05
        for waited in (1, 2, 3):
            await trio.sleep(1)
            assert bench.scheduler.operations.statistics().stalled_seconds == pytest.approx(start + waited)
        await trio.sleep(56.9)
        assert bench.launcher.starts == 1
        await trio.sleep(0.15)
        assert bench.scheduler.operations.statistics().stalled_seconds == 0
        assert "no step for 60 seconds" in (bench.scheduler.operations.statistics().engine.last_death or "")
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    await check_undisturbed(client, ScriptedPlan(step_seconds=0.01))
    assert bench.sample("penstock_engine_restarts_total", cause="hung") == 1


@trio_test
async def test_an_engine_that_has_shown_its_pace_is_not_waited_for_as_long(autojump_clock: MockClock) -> None:
    """Thirty steps of 10 ms are known: half a minute without a step is enough, where 120 s would be
    allowed."""
    bench = Bench(faults=Faults(hang_at_step=30), stall_seconds=120)
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(ask(max_tokens=40)))
        await bench.wait_for(lambda: bench.observer.steps == 30)
        await trio.sleep(29.5)
        assert bench.launcher.starts == 1
        await trio.sleep(1.5)
        assert bench.scheduler.operations.statistics().stalled_seconds < 2
        assert "no step for 30 seconds" in (bench.scheduler.operations.statistics().engine.last_death or "")
        await bench.scheduler.wait_idle()
    await check_undisturbed(client, ScriptedPlan(step_seconds=0.01))
    assert bench.sample("penstock_engine_restarts_total", cause="hung") == 1


@trio_test
async def test_a_long_prompt_that_is_read_again_is_no_stall(autojump_clock: MockClock) -> None:
    """The engine sends no output meanwhile; its reply to an inspection shows that it makes steps."""
    plan = ScriptedPlan(step_seconds=1.0, prefill_tokens_per_step=2)
    bench = Bench(plan, stall_seconds=10)
    async with running(bench.scheduler) as nursery:
        client = await bench.come(nursery, Client(ask("long" * 20, max_tokens=9)))
        await bench.wait_for(lambda: len(client.text.split()) == 5)
        bench.launcher.kill()
        await bench.scheduler.wait_idle()
        assert bench.launcher.starts == 2
    await check_undisturbed(client, plan)


@trio_test
async def test_an_idle_engine_is_not_stalled(autojump_clock: MockClock) -> None:
    """No output is not a stall while the engine has no work, nor at the moment when work arrives."""
    bench = Bench()
    async with running(bench.scheduler) as nursery:
        await trio.sleep(1000)
        assert bench.scheduler.operations.statistics().stalled_seconds == 0
        await bench.come(nursery, Client(ask()))
        assert bench.scheduler.operations.statistics().stalled_seconds < 0.05


@trio_test
async def test_a_slow_death_of_the_answer_is_no_death_of_the_engine(autojump_clock: MockClock) -> None:
    """A request that fails alone does not restart the engine."""
    bench = Bench(faults=Faults(fail_sampler_token=ord("#")))
    async with running(bench.scheduler):
        _, final = await answer(bench.scheduler, ask("#"))
        assert isinstance(final, Failed)
        assert isinstance(final.error, RequestFailed)
        assert bench.launcher.starts == 1
        assert bench.sample("penstock_engine_deaths_total") == 0
