"""A request that crashes engines fails alone; other requests wait for the next engine."""

from __future__ import annotations

import math

import pytest
import trio
import trio.testing
from trio.testing import MockClock, trio_test

from api.answers.errors import from_scheduler
from scheduler.config import RecoveryConfig
from scheduler.errors import PoisonousRequest, Unavailable
from scheduler.events import Failed
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Bench, Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import EngineDeath, Faults
from tests.fakes.scheduling import ask, running

HEALTHY = ScriptedPlan(step_seconds=0.01)
DEADLY = Faults(die_token=ord("#"))


def check_poisonous(client: Client, deaths: int) -> None:
    """One final event, which names the request and the reason."""
    [final] = client.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, PoisonousRequest)
    assert f"died {deaths} times" in final.error.message
    assert client.request.public_id in final.error.message
    assert final.error.retry_after_seconds is None


@pytest.mark.parametrize("deaths", [1, 2, 3])
@trio_test
async def test_alone_it_is_failed_at_the_death_that_is_one_too_many(
    deaths: int, autojump_clock: MockClock
) -> None:
    """`max_request_deaths` is the bound, and the service goes on."""
    bench = Bench(faults=DEADLY, recovery=RecoveryConfig(max_request_deaths=deaths))
    async with running(bench.scheduler) as nursery:
        killer = await bench.come(nursery, Client(ask("#")))
        await bench.scheduler.wait_idle()
        assert bench.sample("penstock_engine_deaths_total") == deaths
        healthy = Client(ask("a"))
        await healthy.follow(bench.scheduler)
    check_poisonous(killer, deaths)
    await check_undisturbed(healthy, HEALTHY)
    assert bench.outcomes() == {"error": 1, "length": 1}
    assert bench.sample("penstock_poisonous_requests_total") == 1


@trio_test
async def test_its_neighbours_lose_no_more_than_time(autojump_clock: MockClock) -> None:
    """Trusted requests, those that came with it and those in the queue all finish; two deaths."""
    bench = Bench(faults=DEADLY, max_slots=6, lookahead=0)
    trusted = [Client(ask(f"trusted {number}", max_tokens=60)) for number in range(2)]
    fresh = [Client(ask(f"fresh {number}", max_tokens=20)) for number in range(2)]
    later = [Client(ask(f"later {number}", max_tokens=20)) for number in range(4)]
    killer = Client(ask("#", max_tokens=20))
    async with running(bench.scheduler) as nursery:
        for client in trusted:
            await bench.come(nursery, client)
        await bench.wait_for(lambda: all(len(client.text.split()) > 5 for client in trusted))
        for client in (fresh[0], killer, fresh[1], *later):
            await bench.come(nursery, client)
        await bench.scheduler.wait_idle()
        await trio.sleep(0.05)
        bench.check_nothing_is_left()
    check_poisonous(killer, 2)
    for client in (*trusted, *fresh, *later):
        await check_undisturbed(client, HEALTHY)
    assert bench.sample("penstock_engine_restarts_total", cause="crashed") == 2
    assert bench.outcomes() == {"error": 1, "length": 8}


@trio_test
async def test_a_poison_in_the_middle_of_an_answer_is_found_too(autojump_clock: MockClock) -> None:
    """It crashes the engine at its tenth token, and again at that token when it is resumed."""
    bench = Bench(HEALTHY, max_slots=3)
    neighbours = [Client(ask(f"{number}", max_tokens=40)) for number in range(2)]
    killer = Client(ask("killer", max_tokens=40))

    def die_of_it() -> None:
        backend = bench.launcher.backend
        rows = getattr(backend, "_rows")  # noqa: B009 (a fake's inside)
        if 2 in rows and rows[2].sequence.generated_tokens == 9:
            raise EngineDeath

    bench.observer.before_step = die_of_it
    async with running(bench.scheduler) as nursery:
        for client in (neighbours[0], killer, neighbours[1]):
            await bench.come(nursery, client)
        await bench.scheduler.wait_idle()
    [final] = killer.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, PoisonousRequest)
    for client in neighbours:
        await check_undisturbed(client, HEALTHY)


@trio_test
async def test_a_request_awaiting_an_engine_at_shutdown_is_no_poison(autojump_clock: MockClock) -> None:
    """The end of the service is not a crash."""
    bench = Bench(recovery=RecoveryConfig(max_request_deaths=1))
    async with trio.open_nursery() as people:
        async with running(bench.scheduler):
            client = await bench.come(people, Client(ask(max_tokens=1000)))
        await trio.testing.wait_all_tasks_blocked()
    [final] = client.finals
    assert isinstance(final, Failed)
    assert final.error.code == "shutting_down"
    assert bench.sample("penstock_poisonous_requests_total") == 0


def test_it_is_a_500_that_invites_no_retry() -> None:
    """Clients would repeat the request for other statuses, and crash more engines."""
    error = from_scheduler(PoisonousRequest("it kills"))
    assert (error.status, error.code) == (500, "poisonous_request")


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
        await check_undisturbed(client, HEALTHY)
    assert bench.outcomes() == {"length": 2, "rejected": 1}
