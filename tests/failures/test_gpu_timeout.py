"""The device's watchdog ends an engine because a chunk took too long: the next computes smaller chunks."""

from __future__ import annotations

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from trio.testing import MockClock, trio_test

from scheduler.engine.backend import Backend
from scheduler.engine_bounds import LEAST_CEILING_TOKENS
from scheduler.errors import PoisonousRequest
from scheduler.events import Failed
from scheduler.service import Scheduler
from scheduler.shared.messages import Load, ScriptedPlan
from tests.cancellation.bench import Client
from tests.examples import examples
from tests.failures.undisturbed import check_undisturbed
from tests.fakes.faulty_backend import HEALTHY, Faults
from tests.fakes.loopback_engine import LoopbackLauncher, scripted
from tests.fakes.samples import sample
from tests.fakes.scheduling import ask, make_scheduler, running

PLAN = ScriptedPlan(step_seconds=0.01)
WHOLE = 512


class Metal:
    """Makes engines on a device with Metal's watchdog; `faults` may change from one to the next."""

    def __init__(self, *faults: Faults) -> None:
        self._faults = list(faults)
        self.ceilings: list[int] = []

    def __call__(self, load: Load) -> Backend:
        self.ceilings.append(load.chunk_ceiling)
        faults = self._faults.pop(0) if len(self._faults) > 1 else self._faults[0]
        return scripted(load, faults)


def make(*faults: Faults) -> tuple[Scheduler, Metal]:
    metal = Metal(*faults)
    return make_scheduler(LoopbackLauncher(metal), PLAN), metal


async def follow_all(scheduler: Scheduler, *clients: Client) -> None:
    """In this order, to their ends."""
    async with running(scheduler), trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(client.follow, scheduler)
            while client.stream is None:
                await trio.lowlevel.checkpoint()


@trio_test
async def test_a_device_that_is_in_time_again_gets_its_chunks_back(autojump_clock: MockClock) -> None:
    """Over time, with a log line for each change."""
    scheduler, metal = make(Faults(most_chunk_tokens=300), HEALTHY)
    clients = [Client(ask(f"{number}" * 40_000, max_tokens=2)) for number in range(6)]
    with capture_logs() as logs:
        async with running(scheduler):
            for client in clients:
                await client.follow(scheduler)
                await check_undisturbed(client, PLAN)
    assert metal.ceilings == [WHOLE, 256]
    raised = [line["tokens"] for line in logs if line["event"] == "prefill_chunk_raised"]
    assert raised == [320, 400, 500, WHOLE]
    assert scheduler.operations.report().prefill_chunk_ceiling == WHOLE
    assert sample(scheduler.metrics.registry, "penstock_prefill_chunk_ceiling_tokens") == WHOLE


@trio_test
async def test_only_what_fails_with_the_smallest_chunk_is_poison(autojump_clock: MockClock) -> None:
    """Its neighbours, suspects beside it and trusted ones, lose only time."""
    scheduler, metal = make(Faults(timeout_token=ord("#")))
    neighbours = [Client(ask(text * 40, max_tokens=40)) for text in "ab"]
    culprit = Client(ask("#" * 40, max_tokens=40))
    await follow_all(scheduler, neighbours[0], culprit, neighbours[1])
    for neighbour in neighbours:
        await check_undisturbed(neighbour, PLAN)
    [final] = culprit.finals
    assert isinstance(final, Failed)
    assert isinstance(final.error, PoisonousRequest)
    assert f"died 7 times with request {culprit.request.public_id}" in final.error.message
    assert "gpu_timeout" in final.error.message
    assert final.error.retry_after_seconds is None
    assert metal.ceilings[:7] == [WHOLE, 256, 128, 64, 32, 16, 16]
    assert sample(scheduler.metrics.registry, "penstock_poisonous_requests_total") == 1


@settings(max_examples=examples(12), deadline=None)
@given(most=st.integers(LEAST_CEILING_TOKENS, 600), length=st.integers(1, 4000))
def test_whatever_chunk_a_device_computes_in_time_every_answer_comes(most: int, length: int) -> None:
    """From the smallest on, with no more deaths than there are halvings."""

    async def scenario() -> None:
        scheduler, metal = make(Faults(most_chunk_tokens=most))
        client = Client(ask("x" * length))
        await follow_all(scheduler, client)
        await check_undisturbed(client, PLAN)
        assert len(metal.ceilings) <= 1 + (WHOLE // LEAST_CEILING_TOKENS).bit_length()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))
