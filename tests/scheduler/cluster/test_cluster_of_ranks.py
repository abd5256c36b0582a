"""One engine over the machines of a host file: it is there while they are. A fake Ray, virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from scheduler.cluster.cluster import RankStarter
from scheduler.cluster.order import HostOrder, RankOrder
from scheduler.cluster.rank_hosts import RankHosts, read_rank_hosts
from scheduler.link.process import LaunchFailed
from tests.scheduler.cluster.fake_ray import FakeRay, node
from tests.scheduler.cluster.test_cluster import Farm

_VIRTUAL_SECONDS = 300
_FILE = '[{"ssh": "mac-1", "ips": ["10.1.0.1"]}, {"ssh": "mac-2", "ips": ["10.1.0.2"]}]'


@pytest.fixture
def hosts(tmp_path: Path) -> RankHosts:
    (tmp_path / "hosts.json").write_text(_FILE)
    return read_rank_hosts(tmp_path / "hosts.json")


def _order(rank: int) -> HostOrder:
    return HostOrder((), 9000, "11" * 32, "", rank=RankOrder(rank, ("10.1.0.1",), 9001, "22" * 32))


@trio_test
async def test_it_is_one_engine_once_all_machines_are_there(hosts: RankHosts, autojump_clock: object) -> None:
    """A machine of it alone is no engine, and one that is not in the file is none either."""
    ray = FakeRay(node("mac-2"), node("mac-7"))
    farm = Farm(ray, hosts=hosts)
    with trio.fail_after(_VIRTUAL_SECONDS):
        async with farm.running():
            await trio.sleep(30)
            assert farm.conditions() == []
            ray.nodes = (node("mac-2"), node("mac-7"), node("mac-1"))
            await farm.ready(1)
            by_machine = {one.machine: one.engines for one in farm.cluster.statistics().nodes}
            assert by_machine == {"mac-1": ("0",), "mac-2": ("0",), "mac-7": ()}


@trio_test
async def test_each_rank_is_started_on_its_own_machine(hosts: RankHosts, autojump_clock: object) -> None:
    ray = FakeRay(node("mac-2"), node("mac-1"))
    farm = Farm(ray, hosts=hosts)
    with trio.fail_after(_VIRTUAL_SECONDS):
        async with farm.running():
            await farm.ready(1)
            ray.started.clear()
            for rank in (0, 1):
                starter = RankStarter(farm.cluster, rank)
                await starter.start(_order(rank))
                assert starter.describe() == f"mac-{rank + 1}"
            assert [start.node_id for start in ray.started] == [node("mac-1").id, node("mac-2").id]
            assert [start.order.rank for start in ray.started] == [_order(0).rank, _order(1).rank]


@trio_test
async def test_a_rank_without_its_machine_is_no_start(hosts: RankHosts, autojump_clock: object) -> None:
    """The supervisor tries again, when the machine may be back."""
    ray = FakeRay(node("mac-1"), node("mac-2"))
    farm = Farm(ray, hosts=hosts)
    with trio.fail_after(_VIRTUAL_SECONDS):
        async with farm.running():
            await farm.ready(1)
            ray.nodes = (node("mac-1"),)
            await trio.sleep(30)
            assert farm.conditions() == ["ready"]  # Its link lives.
            with pytest.raises(LaunchFailed, match="not all in the cluster"):
                await RankStarter(farm.cluster, 1).start(_order(1))
