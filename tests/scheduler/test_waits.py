"""Who waits and why, by tenant: from tokenizing to the engine's slots."""

from __future__ import annotations

import trio
from trio.testing import MockClock, trio_test

from scheduler.operations import waits_of
from scheduler.service import Scheduler
from scheduler.shared.messages import Counters, ScriptedPlan, StepOutput, WaitOut
from scheduler.statistics import WaitStatistics
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import ask, make_scheduler, running
from tests.scheduler.requests.board import Board
from tests.scheduler.requests.records import make_record


def test_lines_are_by_tenant_and_reason_the_longest_first() -> None:
    """Sessions of one tenant and one reason are one line, with its oldest request."""
    board = Board()
    records = [board.submit(make_record(number, tenant="acme", arrived_at=number)) for number in (1, 2, 3)]
    waits = [WaitOut(1, "prefix"), WaitOut(2, "prefix")]
    board.route(StepOutput([], [], [], Counters(), waits=waits))
    queued = [make_record(9, text="z", tenant="globex", arrived_at=9.0)] + [
        make_record(
            number, text="abc"[number % 3], tenant="acme", session=f"s{number}", arrived_at=8 - number
        )
        for number in range(4, 9)
    ]
    assert waits_of({"globex": 4}, queued, "engines_full", records, now=10.0) == (
        WaitStatistics("acme", "engines_full", 5, 10.0, "test-c"),
        WaitStatistics("globex", "tokenizing", 4, None, None),
        WaitStatistics("acme", "prefix", 2, 9.0, "test-hello"),
        WaitStatistics("globex", "engines_full", 1, 1.0, "test-z"),
        WaitStatistics("acme", "step", 1, 7.0, "test-hello"),
    )


async def waits_while(scheduler: Scheduler, requests: int) -> list[tuple[str, str, int]]:
    """Return what is waited for a moment after these requests came."""
    async with trio.open_nursery() as nursery:

        async def hold(number: int) -> None:
            async with scheduler.stream(ask(f"{number} " * 20, max_tokens=50, tenant="acme")):
                await trio.sleep_forever()

        for number in range(requests):
            nursery.start_soon(hold, number)
            await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(0.05)
        found = scheduler.operations.report().waits
        nursery.cancel_scope.cancel()
    return sorted((line.tenant, line.reason, line.requests) for line in found)


@trio_test
async def test_the_report_says_it_from_the_queue_to_the_slot(autojump_clock: MockClock) -> None:
    """One has the slot, two wait in the engine for it, and the others for the engine."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.01), max_slots=1, lookahead=2)
    async with running(scheduler):
        assert await waits_while(scheduler, 6) == [("acme", "engines_full", 3), ("acme", "slot", 2)]
        assert await waits_while(scheduler, 1) == []
