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
from scheduler.engine.backend import Backend
from scheduler.engines.supervisor import EngineNeverReady
from scheduler.errors import PoisonousRequest, Unavailable
from scheduler.events import Failed
from scheduler.processes.process import Exit, Session
from scheduler.shared.messages import Load, ScriptedPlan
from tests.cancellation.bench import Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import HEALTHY, Faults
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler, running

PLAN = ScriptedPlan(step_seconds=0.01)
LONG = 60


class Broken:
    """An engine that says why it cannot start."""

    async def run(self, session: Session) -> Exit:
        def refuse(load: Load) -> Backend:
            raise ValueError("this GPU is broken")

        return await LoopbackLauncher(refuse).run(session)


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

    async def come(self, nursery: trio.Nursery, count: int, first: int = 0) -> list[Client]:
        """Clients with long answers, each on an engine when this returns."""
        clients = [Client(ask(f"{number}", max_tokens=LONG)) for number in range(first, first + count)]
        for client in clients:
            nursery.start_soon(client.follow, self.scheduler)
            await self.until(lambda client=client: client.stream is not None)  # type: ignore[misc]
        return clients

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.scheduler.metrics.registry, name, **labels)

    def conditions(self) -> dict[str, str]:
        return {line.engine: line.condition.value for line in self.scheduler.operations.report().engines}


@trio_test
async def test_requests_of_a_dead_engine_go_on_at_another_one_at_once(autojump_clock: MockClock) -> None:
    """With the same tokens, and before the dead one is restarted."""
    engines = Engines(2)
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        clients = await engines.come(nursery, 4)
        await engines.until(lambda: all(len(client.text.split()) > 5 for client in clients))
        assert sorted(map(engines.engine_of, clients)) == ["0", "0", "1", "1"]
        died_at = trio.current_time()
        engines.launchers[0].kill()
        await engines.until(lambda: not engines.scheduler.pool["0"].ready)
        assert list(map(engines.engine_of, clients)) == ["1"] * 4
        said = [len(client.text) for client in clients]
        await engines.until(lambda: all(len(one.text) > n for one, n in zip(clients, said, strict=True)))
        assert trio.current_time() - died_at < 0.05
        await engines.scheduler.wait_idle()
        assert engines.sample("penstock_engine_deaths_total", engine="0") == 1
        assert engines.sample("penstock_resumed_requests_total") == 2
    for client in clients:
        await check_undisturbed(client, PLAN)


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
        engines.launchers[0]._make_backend = scripted
        await trio.sleep(4)
        assert engines.sample("penstock_engine_deaths_total", engine="0") == 1
        await engines.scheduler.wait_idle()
    await check_undisturbed(client, PLAN)


@pytest.mark.parametrize(("count", "killed"), [(2, [0, 2]), (3, [0, 0, 2]), (4, [0, 0, 1, 2])])
@trio_test
async def test_a_poison_fails_alone_and_leaves_an_engine_that_serves(
    count: int, killed: list[int], autojump_clock: MockClock
) -> None:
    """Its neighbours, those on other engines and those that come meanwhile all finish. It kills one engine
    besides its own, which may have been joined by others at the first time."""
    deadly = Faults(die_token=ord("#"))
    engines = Engines(count, dict.fromkeys(range(count), deadly))
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        clients = await engines.come(nursery, 5)
        killer = Client(ask("#", max_tokens=LONG))
        nursery.start_soon(killer.follow, engines.scheduler)
        later = await engines.come(nursery, 3, first=10)
        await engines.scheduler.wait_idle()
        deaths = [engines.sample("penstock_engine_deaths_total", engine=name) for name in "0123"[:count]]
    [final] = killer.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, PoisonousRequest)
    assert sorted(deaths) == killed
    for client in (*clients, *later):
        await check_undisturbed(client, PLAN)


@trio_test
async def test_an_engine_that_never_starts_leaves_the_others_serving(autojump_clock: MockClock) -> None:
    """It is shown as failed, with its reason, and can be removed; the only one of a pool ends the service."""
    engines = Engines(1)
    async with running(engines.scheduler) as nursery:
        engines.scheduler.pool.add(Broken())
        await engines.until(lambda: engines.conditions()["1"] == "failed")
        line = engines.scheduler.operations.report().engines[1]
        assert line.last_death is not None
        assert "this GPU is broken" in line.last_death
        assert engines.scheduler.operations.statistics().blocked is None
        (client,) = await engines.come(nursery, 1)
        await engines.scheduler.wait_idle()
        engines.scheduler.pool.remove("1")
        assert list(engines.conditions()) == ["0"]
    await check_undisturbed(client, PLAN)
    broken = make_scheduler(lambda number: Broken(), PLAN, engines=2)
    with pytest.raises(EngineNeverReady):
        await broken.run()


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
async def test_a_drained_engine_answers_what_it_has_and_is_gone(autojump_clock: MockClock) -> None:
    """New requests go to the others, one that was added included; its metrics leave with it."""
    engines = Engines(2)
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        clients = await engines.come(nursery, 2)
        name = engines.engine_of(clients[0])
        engines.scheduler.pool.remove(name)
        assert engines.scheduler.pool.add(engines._launcher(2)).name == "2"
        await engines.all_ready()
        later = await engines.come(nursery, 3, first=10)
        assert name not in map(engines.engine_of, later)
        assert engines.engine_of(clients[0]) == name
        await engines.scheduler.wait_idle()
        await engines.until(lambda: name not in engines.conditions())
        assert len(engines.conditions()) == 2
        with pytest.raises(KeyError):
            engines.sample("penstock_engine_up", engine=name)
    for client in (*clients, *later):
        await check_undisturbed(client, PLAN)


@trio_test
async def test_where_engines_join_there_may_be_no_engine(autojump_clock: MockClock) -> None:
    """Requests wait, and reports are empty."""
    engines = Engines(0, engines_join=True, must_start=False)
    pool = engines.scheduler.pool
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engines.scheduler.run)
        client = Client(ask("early", max_tokens=LONG))
        nursery.start_soon(client.follow, engines.scheduler)
        await engines.until(lambda: engines.scheduler.operations.statistics().queued == 1)
        assert engines.scheduler.operations.report().engines == ()
        added = pool.add(LoopbackLauncher(lambda load: scripted(load)))
        await engines.scheduler.wait_idle()
        pool.remove(added.name)
        await engines.until(lambda: engines.conditions() == {})
        assert engines.scheduler.operations.statistics().blocked is None
        nursery.cancel_scope.cancel()
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


@trio_test
async def test_an_engine_that_dies_while_it_drains_is_not_replaced(autojump_clock: MockClock) -> None:
    """Its trusted requests and its suspects go on at another one."""
    engines = Engines(2)
    async with running(engines.scheduler) as nursery:
        await engines.all_ready()
        clients = await engines.come(nursery, 4)
        await engines.until(lambda: all(len(client.text.split()) > 5 for client in clients))
        fresh = await engines.come(nursery, 2, first=10)
        engines.scheduler.pool.remove("0")
        engines.launchers[0].kill()
        await engines.scheduler.wait_idle()
        await engines.until(lambda: list(engines.conditions()) == ["1"])
        assert engines.launchers[0].starts == 1
    for client in (*clients, *fresh):
        await check_undisturbed(client, PLAN)


class OnceBroken(LoopbackLauncher):
    """Its first engine says why it cannot start."""

    async def run(self, session: Session) -> Exit:
        if self.starts == 0:
            self.starts += 1
            return await Broken().run(session)
        return await super().run(session)


@trio_test
async def test_an_engine_that_could_not_be_started_may_be_tried_again(autojump_clock: MockClock) -> None:
    """Under its own name, as when its machine joins anew; others are left alone."""
    engines = Engines(1)
    async with running(engines.scheduler) as nursery:
        engines.launchers[1] = once_broken = OnceBroken()
        engines.scheduler.pool.add(once_broken)
        await engines.until(lambda: engines.conditions()["1"] == "failed")
        engines.scheduler.pool.retry("0")
        engines.scheduler.pool.retry("1")
        await engines.all_ready()
        assert (engines.launchers[0].starts, once_broken.starts) == (1, 2)
        (client,) = await engines.come(nursery, 1)
        await engines.scheduler.wait_idle()
    await check_undisturbed(client, PLAN)
