"""Several engines behind one queue, and what becomes of requests when one of them dies, hangs, leaves or
never starts: real loops over memory, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.config import RecoveryConfig
from scheduler.errors import Unavailable
from scheduler.shared.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import HEALTHY, Faults
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler, running

PLAN = ScriptedPlan(step_seconds=0.01)
LONG = 60


class Engines:
    """A scheduler over loopback engines. `faults` by the engine's number: of each of its processes."""

    def __init__(self, count: int, faults: dict[int, Faults] | None = None, **options: Any) -> None:
        self.launchers: dict[int, Any] = {}
        self._faults = faults or {}
        options = {"max_slots": 4, "lookahead": 0} | options
        self.scheduler = make_scheduler(self._launcher, PLAN, engines=count, **options)

    def _launcher(self, number: int) -> Any:
        faults = self._faults.get(number, HEALTHY)
        if number not in self.launchers:
            self.launchers[number] = LoopbackLauncher(lambda load: scripted(load, faults))
        return self.launchers[number]

    def engine_of(self, client: Client) -> str:
        """Return the engine's name of a request that some engine has."""
        names = {record.request.public_id: record.engine for record in self.scheduler.pool.records}
        name = names[client.request.public_id]
        assert name is not None
        return name

    async def all_ready(self) -> None:
        await self.until(lambda: all(member.ready for member in self.scheduler.pool))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 (virtual time: nothing is waited for)
            await trio.sleep(0.002)

    async def come(self, nursery: trio.Nursery, count: int) -> list[Client]:
        """Clients with long answers, each on an engine when this returns."""
        clients = [Client(ask(f"{number}", max_tokens=LONG)) for number in range(count)]
        for client in clients:
            nursery.start_soon(client.follow, self.scheduler)
            await self.until(lambda client=client: client.stream is not None)  # type: ignore[misc]
        return clients

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.scheduler.metrics.registry, name, **labels)

    def conditions(self) -> dict[str, str]:
        return {line.engine: line.condition.value for line in self.scheduler.operations.report().engines}


@pytest.mark.parametrize(("count", "seconds"), [(2, 30), (1, 120)])
@trio_test
async def test_an_engine_that_hangs_is_given_up_sooner_beside_others(
    count: int, seconds: float, autojump_clock: MockClock
) -> None:
    """After 30 s, where one alone has the operator's 120 from its first step on."""
    engines = Engines(count, {0: Faults(hang_at_step=6)}, stall_seconds=120)
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        (client,) = await engines.come(nursery, 1)
        assert engines.engine_of(client) == "0"
        await trio.sleep(seconds - 2)
        assert engines.sample("penstock_engine_deaths_total", engine="0") == 0
        stalled = engines.scheduler.operations.statistics().stalled_seconds
        assert stalled == pytest.approx(seconds - 2, abs=0.1)
        engines.launchers[0]._make_backend = scripted
        await trio.sleep(4)
        assert engines.sample("penstock_engine_restarts_total", engine="0", cause="hung") == 1
        await engines.scheduler.wait_idle()
    await check_undisturbed(client, PLAN)


@trio_test
async def test_admission_closes_only_when_no_engine_is_left_to_count_on(autojump_clock: MockClock) -> None:
    """One in a crash loop, then both."""
    recovery = RecoveryConfig(max_engine_deaths=2, death_window_seconds=60)
    engines = Engines(2, recovery=recovery)
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        for number in (0, 1):
            for _ in range(2):
                engines.launchers[number].kill()
                await engines.until(lambda n=number: not engines.scheduler.pool[str(n)].ready)  # type: ignore[misc]
                await engines.all_ready()
            blocked = engines.scheduler.operations.statistics().blocked
            if number == 0:
                assert blocked is None
                (client,) = await engines.come(nursery, 1)
            else:
                assert "died 2 times" in (blocked or "")
        refused = Client(ask("refused"))
        await refused.follow(engines.scheduler)
        assert isinstance(refused.refusal, Unavailable)
        await engines.scheduler.wait_idle()
        await trio.sleep(31)
        assert engines.scheduler.operations.statistics().blocked is None
    await check_undisturbed(client, PLAN)


@trio_test
async def test_an_engine_of_another_model_never_joins(autojump_clock: MockClock) -> None:
    """What others have begun would go on with other tokens there. It is shown as failed, by name, gets no
    request and is not started again."""
    engines = Engines(1)
    async with running(engines.scheduler) as nursery:
        for number, vocabulary in ((1, 9), (2, PLAN.vocabulary)):
            plan = msgspec.structs.replace(PLAN, vocabulary=vocabulary)
            engines.launchers[number] = LoopbackLauncher(
                lambda load, plan=plan: scripted(msgspec.structs.replace(load, scripted=plan))  # type: ignore[misc]
            )
            engines.scheduler.pool.add(engines.launchers[number])
        await engines.until(lambda: engines.conditions() == {"0": "ready", "1": "failed", "2": "ready"})
        last_death = engines.scheduler.operations.report().engines[1].last_death
        assert last_death is not None
        assert "unlike this pool's" in last_death
        assert f"vocabulary 9, not {PLAN.vocabulary}" in last_death
        clients = await engines.come(nursery, 8)
        assert {engines.engine_of(client) for client in clients} == {"0", "2"}
        await engines.scheduler.wait_idle()
        assert engines.launchers[1].starts == 1
    for client in clients:
        await check_undisturbed(client, PLAN)
