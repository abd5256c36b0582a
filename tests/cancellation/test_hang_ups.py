"""Hundreds of clients leave at random moments, with every real part in one process except the model: server,
application, scheduler, link, engine loop. Afterwards no task of them is left."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from api.served_models import ServedModels
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import MODEL, app_of
from tests.contracts.journal import kv_bytes
from tests.end_to_end.raw_client import request_bytes
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.memory_network import MemoryNetwork
from tests.fakes.samples import sample
from tests.fakes.scheduling import make_scheduler, running

CLIENTS, SECONDS = 400, 8


@pytest.mark.slow
@trio_test
async def test_hundreds_of_hang_ups_leave_no_task_behind(autojump_clock: trio.testing.MockClock) -> None:
    """Queued, prefilling, decoding, streamed and not: each leaves at its own moment, some stay."""
    rng = random.Random(1000)
    launcher = LoopbackLauncher()
    plan = ScriptedPlan(step_seconds=0.01, prefill_tokens_per_step=20)
    scheduler = make_scheduler(launcher, plan, max_slots=8)
    network = MemoryNetwork()
    app = app_of(ServedModels.of(scheduler, MODEL), keep_alive_seconds=1.0)

    async def client(number: int) -> None:
        await trio.sleep(rng.uniform(0, SECONDS))
        stream = network.connect()
        text, stay = "x" * rng.randrange(200), rng.choice((0.0, 0.015, 0.2, 1.0, 5.0, 1e6))
        await stream.send_all(request_bytes(text, max_tokens=rng.randrange(1, 60), stream=number % 3 != 0))
        with trio.move_on_after(stay):
            received = b""
            while not (received.endswith(b"0\r\n\r\n") or b"\r\n\r\n{" in received):
                data = await stream.receive_some()
                assert data, "the server hung up on a client that stayed"
                received += data
        await stream.aclose()

    async with running(scheduler) as nursery:
        nursery.start_soon(network.serve, app)
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as clients:
            for number in range(CLIENTS):
                clients.start_soon(client, number)
        await scheduler.wait_idle()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        assert network.failures == []
        statistics = scheduler.operations.statistics()
        assert (statistics.queued, statistics.in_engine) == (0, 0)
        assert launcher.loop is not None
        assert launcher.loop.idle
        assert launcher.backend is not None
        assert kv_bytes(launcher.backend) == 0
    outcomes = {
        outcome: sample(scheduler.metrics.registry, "penstock_requests_total", outcome=outcome)
        for outcome in ("stop", "length", "cancelled", "rejected", "invalid", "error")
    }
    assert outcomes["error"] == outcomes["rejected"] == outcomes["invalid"] == 0
    assert outcomes["cancelled"] > CLIENTS / 5
    assert outcomes["length"] > CLIENTS / 10
