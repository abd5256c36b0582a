"""The pool follows the machines that dial: real loops over memory, virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from scheduler.cluster.joined import (
    AWAY_SECONDS,
    RETRY_SECONDS,
    JoinedMachine,
)
from scheduler.engine.backend import Backend
from scheduler.engine.load_failure import LoadRefused
from scheduler.shared.messages import Load
from tests.cancellation.bench import Client
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import ask
from tests.scheduler.cluster.dialing import LONG, PLAN, Farm, Machine


async def check_all(farm: Farm, clients: list[Client]) -> None:
    with trio.fail_after(300):
        await farm.scheduler.wait_idle()
    for client in clients:
        await check_undisturbed(client, PLAN)


@trio_test
async def test_requests_wait_for_the_first_machine(autojump_clock: MockClock) -> None:
    farm = Farm()
    async with farm.running() as nursery:
        client = Client(ask("early", max_tokens=LONG))
        nursery.start_soon(client.follow, farm.scheduler)
        await trio.sleep(300)
        assert farm.scheduler.operations.statistics().queued == 1
        assert farm.scheduler.operations.statistics().blocked is None
        farm.turn_on(Machine("mac-1"))
        await check_all(farm, [client])
        assert farm.conditions() == ["ready"]
        assert farm.engines.machines() == (JoinedMachine("mac-1", "10.0.0.9", True, "0"),)


@trio_test
async def test_a_killed_engine_is_the_same_engine_when_its_machine_dials_again(
    autojump_clock: MockClock,
) -> None:
    """Meanwhile its streams go on at the other one."""
    farm = Farm(Machine("mac-1"), Machine("mac-2"))
    async with farm.running() as nursery:
        await farm.ready(2)
        clients = await farm.come(nursery, 4)
        farm.machines[0].kill()
        await check_all(farm, clients)
        await farm.ready(2)
        assert farm.scheduler.pool.names == ["0", "1"]
        assert farm.machines[0].dialed == 2
        assert farm.sample("penstock_engine_restarts_total", engine="0") == 1


@trio_test
async def test_a_machine_that_stays_away_leaves_the_pool_and_takes_no_stream_along(
    autojump_clock: MockClock,
) -> None:
    farm = Farm(Machine("mac-1"), Machine("mac-2"))
    async with farm.running() as nursery:
        await farm.ready(2)
        clients = await farm.come(nursery, 4)
        farm.machines[1].turn_off()
        left_at = trio.current_time()
        await farm.until(lambda: farm.scheduler.pool.names == ["0"])
        assert trio.current_time() - left_at == pytest.approx(AWAY_SECONDS, abs=3)
        await check_all(farm, clients)
        assert [machine.machine for machine in farm.engines.machines()] == ["mac-1"]
        farm.turn_on(farm.machines.pop())
        await farm.ready(2)
        assert farm.scheduler.pool.names == ["0", "2"]


@trio_test
async def test_an_engine_that_is_refused_is_tried_again_more_and_more_rarely(
    autojump_clock: MockClock,
) -> None:
    """As one that has another model. The others serve meanwhile, and its machine waits without loading."""
    refused, loads = Machine("mac-2"), list[float]()

    def fails(load: Load) -> Backend:
        loads.append(trio.current_time())
        raise LoadRefused("another model")

    refused.engine = LoopbackLauncher(fails)
    farm = Farm(Machine("mac-1"), refused)
    async with farm.running():
        await trio.sleep(10 * RETRY_SECONDS)
        assert sorted(farm.conditions()) == ["failed", "ready"]
        gaps = [later - earlier for earlier, later in pairwise(loads)]
        assert gaps == [pytest.approx(RETRY_SECONDS * 2**n, abs=3) for n in range(3)]
        refused.engine = LoopbackLauncher()
        await trio.sleep(40 * RETRY_SECONDS)
        assert farm.conditions() == ["ready", "ready"]


@trio_test
async def test_of_two_machines_of_one_name_the_second_is_refused_by_name(autojump_clock: MockClock) -> None:
    """Not at once: a machine that has dialed again may come before the end of its old link is seen."""
    farm = Farm(Machine("mac-1"))
    async with farm.running() as nursery:
        await farm.ready(1)
        clients = await farm.come(nursery, 2)
        with capture_logs() as logs:
            other = Machine("mac-1")
            farm.turn_on(other)
            await farm.until(lambda: other.dialed == 2)
        [refused] = [entry for entry in logs if entry["event"] == "machine_refused"]
        assert "give one of them another --name" in refused["reason"]
        await check_all(farm, clients)
        assert farm.scheduler.pool.names == ["0"]


@trio_test
async def test_the_sixty_fifth_machine_is_refused_by_name(autojump_clock: MockClock) -> None:
    farm = Farm(*(Machine(f"mac-{number}") for number in range(64)))
    async with farm.running():
        await farm.ready(64)
        with capture_logs() as logs:
            farm.turn_on(Machine("mac-64"))
            await trio.sleep(0.5)
        assert [entry["machine"] for entry in logs if entry["event"] == "machine_refused"] == ["mac-64"]
        assert len(farm.conditions()) == 64
