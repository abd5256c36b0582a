"""What `/metrics` says of prefixes that leave and enter as files."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from scheduler.errors import Unavailable
from scheduler.service import Scheduler
from scheduler.telemetry.labels import TRANSFER_OUTCOMES
from tests.api.client import chat, client_of
from tests.api.test_prefix_files import a_file
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.samples import sample
from tests.fakes.scheduling import answer, ask, make_scheduler, running

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def ended(scheduler: Scheduler, metric: str) -> dict[str, float]:
    """How many transfers had each outcome, without those that none had."""
    found = {
        outcome: sample(scheduler.metrics.registry, f"penstock_prefix_{metric}_total", outcome=outcome)
        for outcome in TRANSFER_OUTCOMES
    }
    return {outcome: count for outcome, count in found.items() if count}


def moved(scheduler: Scheduler, unit: str, direction: str) -> float:
    name = f"penstock_prefix_transferred_{unit}_total"
    return sample(scheduler.metrics.registry, name, direction=direction)


@trio_test
async def test_a_file_counts_with_its_tokens_and_bytes(autojump_clock: trio.testing.MockClock) -> None:
    """On both sides alike; the time is the client's, too."""
    leaving, entering = make_scheduler(LoopbackLauncher()), make_scheduler(LoopbackLauncher())
    async with running(leaving), client_of(leaving) as client:
        warmed = await client.post("/v1/cache", json=chat("long " * 500))
        tokens = warmed.json()["prompt_tokens"]
        file = (await client.post("/v1/cache/export", json=chat("long " * 500))).content

    async def slow() -> AsyncIterator[bytes]:
        yield file[:100]
        await trio.sleep(7)
        yield file[100:]

    async with running(entering), client_of(entering) as client:
        assert (await client.post("/v1/cache/import", content=slow())).status_code == 200
    for scheduler, metric, direction in ((leaving, "exports", "export"), (entering, "imports", "import")):
        assert ended(scheduler, metric) == {"done": 1}
        assert moved(scheduler, "tokens", direction) == tokens
        assert moved(scheduler, "bytes", direction) == len(file)
    seconds = sample(entering.metrics.registry, "penstock_prefix_transfer_seconds_total", direction="import")
    assert 7 <= seconds < 8


@trio_test
async def test_a_file_that_does_not_arrive_counts_as_why(autojump_clock: trio.testing.MockClock) -> None:
    """Damaged, beside another one, or from a client that leaves; with what had passed."""
    file = await a_file()
    scheduler = make_scheduler(LoopbackLauncher())

    async def stuck() -> AsyncIterator[bytes]:
        yield file[:100]
        await trio.sleep_forever()

    async with running(scheduler), client_of(scheduler) as client:
        assert (await client.post("/v1/cache/import", content=file[:-1] + b"x")).status_code == 400
        assert ended(scheduler, "imports") == {"refused": 1}
        assert 0 < moved(scheduler, "bytes", "import") <= len(file)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.post("/v1/cache/import", content=stuck()))
            await trio.testing.wait_all_tasks_blocked()
            assert (await client.post("/v1/cache/import", content=file)).status_code == 503
            nursery.cancel_scope.cancel()
        assert ended(scheduler, "imports") == {"refused": 1, "unavailable": 1, "left": 1}
        nothing = await client.post("/v1/cache/export", json=chat(cache_salt="never asked"))
        assert nothing.status_code == 400
        assert ended(scheduler, "exports") == {"refused": 1}


@trio_test
async def test_an_export_that_nobody_reads_to_its_end_is_not_done(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its client goes, or its engine dies."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher)
    async with running(scheduler):
        for dies, expected in ((False, {"left": 1}), (True, {"left": 1, "unavailable": 1})):
            await answer(scheduler, ask("long " * 500))
            export = await scheduler.prefix_files.export(ask("long " * 500))
            pieces = export.pieces()
            opening = await anext(pieces)
            if dies:
                launcher.kill()
                with pytest.raises(Unavailable):
                    await anext(pieces)
            await pieces.aclose()
            export.close()
            assert ended(scheduler, "exports") == expected
        assert moved(scheduler, "bytes", "export") < 3 * len(opening)
