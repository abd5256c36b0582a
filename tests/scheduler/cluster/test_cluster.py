"""The server and the agent that speaks with Ray: an agent over memory, virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, trio_test

from scheduler.cluster.agent_messages import ServerAddress
from scheduler.cluster.cluster import SILENCE_SECONDS, ClusterState, RayCluster
from scheduler.telemetry.metrics import Metrics
from tests.fakes.samples import sample
from tests.scheduler.cluster.fake_ray import ADDRESS, FakeRay, node

PLACE = ServerAddress((), 7000, "00" * 32, "off")


class Watched:
    """A cluster over a fake Ray."""

    def __init__(self, ray: FakeRay) -> None:
        self.metrics = Metrics()
        self.cluster = RayCluster(ray.run, self.metrics)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.cluster.run, PLACE)
            yield
            nursery.cancel_scope.cancel()

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(300):
            while not condition():  # noqa: ASYNC110 (virtual time: nothing is waited for)
                await trio.sleep(0.1)

    async def connected(self) -> None:
        await self.until(lambda: self.cluster.state is ClusterState.CONNECTED)

    async def lost(self) -> None:
        await self.until(lambda: self.cluster.state is ClusterState.LOST)

    def sample(self, name: str) -> float:
        return sample(self.metrics.registry, name)


@trio_test
async def test_nodes_come_and_go_as_ray_has_them(autojump_clock: MockClock) -> None:
    """And the agent learns first how engines join, which no argument and no environment shows."""
    ray = FakeRay(node("mac-1"))
    watched = Watched(ray)
    async with watched.running():
        await watched.connected()
        assert (ray.places, watched.cluster.address) == ([PLACE], ADDRESS)
        ray.nodes = (node("mac-1"), node("mac-2"))
        await watched.until(lambda: len(watched.cluster.nodes) == 2)
        assert watched.sample("penstock_cluster_nodes") == 2
        ray.nodes = (node("mac-2"),)
        await watched.until(lambda: len(watched.cluster.nodes) == 1)
        assert [one.machine for one in watched.cluster.nodes.values()] == ["mac-2"]


@trio_test
async def test_an_agent_that_dies_is_replaced(autojump_clock: MockClock) -> None:
    """Also when it cannot come back: the report says why, in the agent's own words. What it reported last
    stays."""
    ray = FakeRay(node("mac-1"))
    watched = Watched(ray)
    async with watched.running():
        await watched.connected()
        ray.refusal = "Ray's head at mac-1:6379 does not answer"
        ray.kill_agent()
        await trio.sleep(600)
        assert (watched.cluster.state, watched.cluster.reason) == (ClusterState.LOST, ray.refusal)
        assert len(watched.cluster.nodes) == 1
        # With a backoff that ends at 15 s.
        assert 40 <= ray.agents <= 50
        assert watched.sample("penstock_cluster_agent_restarts_total") == watched.cluster.restarts
        ray.refusal = ""
        await watched.connected()
        assert watched.cluster.reason is None


@pytest.mark.parametrize("how", ["mute", "garbage", "unlaunchable"])
@trio_test
async def test_an_agent_that_hangs_or_talks_nonsense_is_replaced(how: str, autojump_clock: MockClock) -> None:
    ray = FakeRay(node("mac-1"))
    ray.mute = how == "mute"
    ray.raw = b"\xff\xff\xff\xff nonsense" if how == "garbage" else b""
    ray.refusal = "none can be launched" if how == "unlaunchable" else ""
    watched = Watched(ray)
    async with watched.running():
        await watched.lost()
        assert trio.current_time() <= SILENCE_SECONDS + 1
        ray.mute, ray.refusal = False, ""
        await watched.connected()
