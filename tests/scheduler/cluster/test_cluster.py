"""The pool follows the nodes of a cluster, and goes on without the cluster: real loops over memory, a fake
Ray, virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from scheduler.cluster.membership import RETRY_SECONDS
from scheduler.cluster.order import HostStarter
from scheduler.cluster.statistics import ClusterState
from trio.testing import MockClock, trio_test

from scheduler.cluster.cluster import AGENT_SECONDS, SILENCE_SECONDS, Cluster, RankStarter
from scheduler.cluster.rank_hosts import RankHosts
from scheduler.link.messages import ScriptedPlan
from tests.cancellation.bench import Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler
from tests.scheduler.cluster.fake_ray import ADDRESS, FakeRay, PlacedLauncher, node

PLAN = ScriptedPlan(step_seconds=0.01)
LONG = 60


class Farm:
    """A scheduler whose engines are on a fake cluster. `launchers` in the order of their engines."""

    def __init__(self, ray: FakeRay, addresses: tuple[str, ...] = (), hosts: RankHosts | None = None) -> None:
        self.launchers: list[PlacedLauncher] = []
        self.ranks = 0 if hosts is None else hosts.group.ranks
        self.scheduler = make_scheduler(
            self.none_here, PLAN, engines=0, nodes_decide=True, must_start=False, max_slots=4, lookahead=0
        )
        metrics = self.scheduler.metrics.server
        self.cluster = Cluster(ray, self.scheduler.pool, self._launcher, metrics, addresses, hosts)

    @staticmethod
    def none_here(number: int) -> PlacedLauncher:
        raise AssertionError("no engine is started here")

    def _launcher(self, starter: HostStarter) -> PlacedLauncher:
        if self.ranks:
            starter = RankStarter(self.cluster, 0)
        self.launchers.append(PlacedLauncher(starter))
        return self.launchers[-1]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[trio.Nursery]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scheduler.run)
            nursery.start_soon(self.cluster.run)
            yield nursery
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():  # noqa: ASYNC110 (virtual time: nothing is waited for)
            await trio.sleep(0.002)

    async def ready(self, count: int) -> None:
        await self.until(lambda: self.conditions() == ["ready"] * count)

    async def lost(self) -> None:
        await self.until(lambda: self.state is ClusterState.LOST)

    def conditions(self) -> list[str]:
        return [line.condition.value for line in self.scheduler.operations.report().engines]

    @property
    def state(self) -> ClusterState:
        return self.cluster.statistics().state

    def sample(self, name: str, **labels: str) -> float:
        return sample(self.scheduler.metrics.registry, name, **labels)

    async def come(self, nursery: trio.Nursery, count: int) -> list[Client]:
        """Clients with long answers, each of whom has some tokens when this returns."""
        clients = [Client(ask(f"{number}", max_tokens=LONG)) for number in range(count)]
        for client in clients:
            nursery.start_soon(client.follow, self.scheduler)
        await self.until(lambda: all(len(client.text.split()) > 5 for client in clients))
        return clients


async def check_all(farm: Farm, clients: list[Client]) -> None:
    await farm.scheduler.wait_idle()
    for client in clients:
        await check_undisturbed(client, PLAN)


@trio_test
async def test_requests_wait_for_the_first_node(autojump_clock: MockClock) -> None:
    ray = FakeRay()
    farm = Farm(ray)
    async with farm.running() as nursery:
        client = Client(ask("early", max_tokens=LONG))
        nursery.start_soon(client.follow, farm.scheduler)
        await trio.sleep(300)
        assert farm.scheduler.operations.statistics().queued == 1
        assert farm.scheduler.operations.statistics().blocked is None
        ray.nodes = (node("mac-1"),)
        await check_all(farm, [client])
        assert farm.conditions() == ["ready"]
        assert farm.sample("penstock_cluster_nodes") == 1


@trio_test
async def test_a_node_that_joins_gets_an_engine_and_one_that_leaves_loses_it_with_its_link(
    autojump_clock: MockClock,
) -> None:
    """While the link lives, nothing is lost; then its streams go on elsewhere, and it is gone."""
    ray = FakeRay(node("mac-1"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(1)
        ray.nodes = (node("mac-1"), node("mac-2"))
        await farm.ready(2)
        ray.nodes = (node("mac-1"),)
        await trio.sleep(30)
        assert farm.conditions() == ["ready"] * 2
        lost = farm.cluster.statistics().nodes[-1]
        assert (lost.machine, lost.living, lost.engines) == ("mac-2", False, ("1",))
        clients = await farm.come(nursery, 4)
        farm.launchers[1].engine.kill()
        await farm.until(lambda: len(farm.conditions()) == 1)
        await check_all(farm, clients)
        assert farm.scheduler.pool.names == ["0"]
        assert [one.engines for one in farm.cluster.statistics().nodes] == [("0",)]


@trio_test
async def test_the_last_engine_may_leave_and_its_requests_wait(autojump_clock: MockClock) -> None:
    ray = FakeRay(node("mac-1"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(1)
        clients = await farm.come(nursery, 3)
        ray.nodes = ()
        await trio.sleep(6)
        clients += await farm.come(nursery, 2)
        farm.launchers[0].engine.kill()
        await farm.until(lambda: farm.conditions() == [])
        await trio.sleep(100)
        assert farm.scheduler.operations.statistics().in_engine == len(
            [client for client in clients if not client.finals]
        )
        ray.nodes = (node("mac-2"),)
        await check_all(farm, clients)


@trio_test
async def test_an_agent_that_dies_is_replaced_and_takes_nothing_with_it(autojump_clock: MockClock) -> None:
    """Also when it cannot come back: the report says why, in the agent's own words."""
    ray = FakeRay(node("mac-1"), node("mac-2"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(2)
        clients = await farm.come(nursery, 4)
        ray.refusal = "Ray's head at mac-1:6379 does not answer"
        ray.kill_agent()
        await farm.lost()
        await check_all(farm, clients)
        await trio.sleep(600)
        report = farm.cluster.statistics()
        assert (report.state, report.reason) == (ClusterState.LOST, ray.refusal)
        assert farm.conditions() == ["ready"] * 2
        # With a backoff that ends at 15 s.
        assert 40 <= ray.agents <= 50
        assert farm.sample("penstock_cluster_agent_restarts_total") == report.agent_restarts
        ray.refusal = ""
        await farm.until(lambda: farm.state is ClusterState.CONNECTED)
        assert farm.cluster.statistics().reason is None
        assert len(farm.launchers) == 2


@trio_test
async def test_an_engine_that_dies_without_an_agent_comes_back_with_it(autojump_clock: MockClock) -> None:
    ray = FakeRay(node("mac-1"), node("mac-2"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(2)
        ray.refusal = "no head"
        ray.kill_agent()
        await farm.lost()
        clients = await farm.come(nursery, 4)
        farm.launchers[0].engine.kill()
        await check_all(farm, clients)
        await trio.sleep(AGENT_SECONDS + 1)
        assert farm.conditions() == ["restarting", "ready"]
        death = farm.scheduler.operations.report().engines[0].last_death
        assert "no engine can be started on mac-1: no head" in (death or "")
        ray.refusal = ""
        await farm.ready(2)


@trio_test
async def test_suspects_do_not_wait_for_an_agent_that_is_gone(autojump_clock: MockClock) -> None:
    """Their engine does not come back: after some failed starts another one takes the risk."""
    ray = FakeRay(node("mac-1"), node("mac-2"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(2)
        ray.refusal = "no head"
        ray.kill_agent()
        await trio.sleep(2 * AGENT_SECONDS)
        clients = [Client(ask(f"{number}", max_tokens=LONG)) for number in range(4)]
        for client in clients:
            nursery.start_soon(client.follow, farm.scheduler)
        await farm.until(lambda: len(farm.scheduler.pool) == 4)
        died_at = trio.current_time()
        farm.launchers[0].engine.kill()
        await check_all(farm, clients)
        assert trio.current_time() - died_at < AGENT_SECONDS


@pytest.mark.parametrize("how", ["mute", "garbage", "unlaunchable"])
@trio_test
async def test_an_agent_that_hangs_or_talks_nonsense_is_replaced(how: str, autojump_clock: MockClock) -> None:
    ray = FakeRay(node("mac-1"))
    ray.mute = how == "mute"
    ray.raw = b"\xff\xff\xff\xff nonsense" if how == "garbage" else b""
    ray.refusal = "none can be launched" if how == "unlaunchable" else ""
    farm = Farm(ray)
    async with farm.running():
        await farm.lost()
        assert trio.current_time() <= SILENCE_SECONDS + 1
        ray.mute, ray.refusal = False, ""
        await farm.ready(1)


@trio_test
async def test_a_node_on_which_nothing_starts_is_tried_again_and_the_others_serve(
    autojump_clock: MockClock,
) -> None:
    ray = FakeRay(node("mac-1"))
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.ready(1)
        ray.start_refusal = "device '0' of mac-2 is in use"
        ray.nodes = (node("mac-1"), node("mac-2"))
        await farm.until(lambda: farm.conditions() == ["ready", "failed"])
        failed = farm.scheduler.operations.report().engines[1]
        assert "no engine can be started on mac-2: device '0' of mac-2 is in use" in (failed.last_death or "")
        await check_all(farm, await farm.come(nursery, 4))
        starts = len(ray.started)
        await trio.sleep(2 * RETRY_SECONDS)
        assert len(ray.started) > starts
        ray.start_refusal = ""
        await farm.ready(2)
        assert farm.scheduler.pool.names == ["0", "1"]


@trio_test
async def test_without_an_engine_that_starts_requests_are_refused_with_the_reason(
    autojump_clock: MockClock,
) -> None:
    """The server stays: a machine that can may join."""
    ray = FakeRay(node("mac-1"))
    ray.start_refusal = "the model is not there"
    farm = Farm(ray)
    async with farm.running() as nursery:
        await farm.until(lambda: farm.conditions() == ["failed"])
        refused = Client(ask("refused"))
        await refused.follow(farm.scheduler)
        assert "the model is not there" in str(refused.refusal)
        ray.start_refusal = ""
        ray.nodes = (node("mac-1"), node("mac-2"))
        await farm.until(lambda: "ready" in farm.conditions())
        await check_all(farm, await farm.come(nursery, 2))


@trio_test
async def test_a_node_that_joins_again_has_the_same_engine(autojump_clock: MockClock) -> None:
    """Its next process is started on the node's new life."""
    ray = FakeRay(node("mac-1", 1))
    farm = Farm(ray)
    async with farm.running():
        await farm.ready(1)
        ray.nodes = ()
        await trio.sleep(20)
        ray.nodes = (node("mac-1", 2),)
        await trio.sleep(20)
        assert farm.scheduler.pool.names == ["0"]
        farm.launchers[0].engine.kill()
        await farm.until(lambda: farm.launchers[0].engine.starts == 2)
        assert [start.node_id for start in ray.started] == ["mac-1/1", "mac-1/2"]


@pytest.mark.parametrize("addresses", [(), ("192.168.7.1", "fd00::1")])
@trio_test
async def test_engines_dial_the_address_that_the_operator_names_or_ray_has(
    addresses: tuple[str, ...], autojump_clock: MockClock
) -> None:
    """And of several places of one node each has a device."""
    ray = FakeRay(node("box", places=2), node("mac-1"))
    farm = Farm(ray, addresses)
    async with farm.running():
        await farm.ready(3)
    orders = {start.order.environment: start.order for start in ray.started}
    assert {order.addresses for order in orders.values()} == {addresses or (ADDRESS,)}
    devices = [(("PENSTOCK_DEVICE", unit), ("CUDA_VISIBLE_DEVICES", unit)) for unit in "01"]
    assert set(orders) == {(), *devices}
    assert farm.cluster.statistics().dials == (", ".join(addresses) or ADDRESS)
