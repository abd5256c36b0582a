"""The engine dies, or does not start, and the service goes on. `test_resume.py` tests its streams."""

from __future__ import annotations

import math
from typing import Never

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig
from scheduler.engines import engine
from scheduler.errors import EngineLost, Unavailable
from scheduler.events import Failed, Finished
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.scheduling import answer, ask, running


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
async def test_engines_that_die_again_and_again_close_the_door_until_one_is_stable(
    autojump_clock: MockClock,
) -> None:
    """`/ready` and new requests get the reason; accepted ones go on; once an engine is stable admission opens
    again."""
    bench = Bench(recovery=RecoveryConfig(max_engine_deaths=3, death_window_seconds=60))
    async with running(bench.scheduler) as nursery:
        patient = await bench.come(nursery, Client(ask("patient", max_tokens=60)))
        for death in range(3):
            said = len(patient.text.split())
            await bench.wait_for(lambda said=said: len(patient.text.split()) >= said + 6)  # type: ignore[misc]
            assert bench.scheduler.operations.statistics().blocked is None, f"after {death} deaths"
            bench.launcher.kill()
            await trio.testing.wait_all_tasks_blocked()
        assert "died 3 times within 60 seconds" in (bench.scheduler.operations.statistics().blocked or "")
        await bench.scheduler.wait_ready()
        blocked = bench.scheduler.operations.statistics()
        assert blocked.blocked is not None
        refused = await bench.come(nursery, Client(ask("refused")))
        assert isinstance(refused.refusal, Unavailable)
        assert refused.refusal.retry_after_seconds == math.ceil(blocked.blocked_seconds) == 30
        await bench.scheduler.wait_idle()
        await trio.sleep(30)
        assert bench.scheduler.operations.statistics().blocked is None
        served = Client(ask("served"))
        await served.follow(bench.scheduler)
    for client in (patient, served):
        await check_undisturbed(client, ScriptedPlan(step_seconds=0.01))
    assert bench.outcomes() == {"length": 2, "rejected": 1}
