"""A batch larger than the queue: fed in blocks, one request for its client, and no burden for others."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import structlog
import structlog.testing
import trio
from trio.testing import MockClock, trio_test

from api.answers.blocks import BLOCK, FEEDERS
from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.instruments import value_of
from tests.api.client import client_of
from tests.api.dialects.test_embeddings import FOLDER, MODEL, embedding_scheduler, text_tokens, vector
from tests.contracts.journal import kv_bytes
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

TEXTS = [f"text {number}" for number in range(300)]


def embeddings(body: Any) -> list[list[float]]:
    return [entry["embedding"] for entry in body["data"]]


EXPECTED = [vector(text_tokens(text)) for text in TEXTS]


@pytest.mark.parametrize("max_queue", [1, 5, 1024])
@trio_test
async def test_a_batch_of_any_size_fits_a_queue_of_any_size(
    max_queue: int, autojump_clock: MockClock
) -> None:
    """All of its vectors, in order; the queue never holds more than the blocks that are under way."""
    scheduler = embedding_scheduler(max_queue=max_queue)
    most = 0
    async with running(scheduler) as nursery, client_of(scheduler, model=MODEL) as client:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, scheduler.operations.statistics().queued)
                await trio.sleep(0.005)

        nursery.start_soon(watch)
        response = await client.post("/v1/embeddings", json={"input": TEXTS})
        assert response.status_code == 200, response.text
        assert embeddings(response.json()) == EXPECTED
        await scheduler.wait_idle()
    assert most <= min(max_queue, BLOCK * FEEDERS)


async def answer_of(client: httpx.AsyncClient, answers: dict[str, Any], name: str, texts: list[str]) -> None:
    """Note the status, and when it came."""
    response = await client.post("/v1/embeddings", json={"input": texts})
    answers[name] = response.status_code, trio.current_time()


@trio_test
async def test_a_later_block_waits_where_the_first_would_be_refused(autojump_clock: MockClock) -> None:
    """Others fill the queue while a batch is under way: it is answered, new batches are refused, and hardly
    anything but these counts as refused."""
    scheduler = embedding_scheduler(plan=ScriptedPlan(step_seconds=0.05), max_queue=20, max_slots=2)
    answers: dict[str, Any] = {}
    async with (
        running(scheduler),
        client_of(scheduler, model=MODEL) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(answer_of, client, answers, "batch", TEXTS[:100])
        for number in range(60):
            await trio.sleep(0.02)
            nursery.start_soon(answer_of, client, answers, f"other {number}", TEXTS[:8])
    assert answers.pop("batch")[0] == 200
    assert {status for status, _ in answers.values()} == {200, 503}
    refused = sum(status == 503 for status, _ in answers.values())
    # A block may find that others took its room while it was prepared; it does not try all the time.
    counted = value_of(scheduler.metrics.rejections["queue_full"])
    assert refused <= counted <= refused + 100 // 10


@trio_test
async def test_the_timeout_is_that_of_the_whole_batch(autojump_clock: MockClock) -> None:
    """Each block alone would be done in time."""
    scheduler = embedding_scheduler(plan=ScriptedPlan(step_seconds=0.1))
    async with running(scheduler), client_of(scheduler, model=MODEL) as client:
        started = trio.current_time()
        body = {"input": TEXTS, "timeout": 3.0}
        response = await client.post("/v1/embeddings", json=body)
        assert response.status_code in (503, 504)
        assert trio.current_time() - started == pytest.approx(3.0)
        await scheduler.wait_idle()


@trio_test
async def test_a_client_that_leaves_leaves_nothing_behind(autojump_clock: MockClock) -> None:
    """Its texts leave the queue and the engine, and no further block enters."""
    launcher = LoopbackLauncher()
    scheduler = make_scheduler(launcher, ScriptedPlan(step_seconds=0.1), folder=FOLDER)
    async with running(scheduler), client_of(scheduler, model=MODEL) as client:
        with trio.move_on_after(1.0):
            await client.post("/v1/embeddings", json={"input": TEXTS})
        with trio.fail_after(1.0):
            await scheduler.wait_idle()
        assert launcher.backend is not None
        assert kv_bytes(launcher.backend) == 0


@trio_test
async def test_a_batch_has_one_log_line(autojump_clock: MockClock) -> None:
    """With its numbers, and none of its texts; each text's own line is for debugging."""
    scheduler = embedding_scheduler()
    async with running(scheduler), client_of(scheduler, model=MODEL) as client:
        with structlog.testing.capture_logs() as lines:
            await client.post("/v1/embeddings", json={"input": TEXTS}, headers={"x-request-id": "mine"})
            with trio.move_on_after(0.1):
                await client.post("/v1/embeddings", json={"input": TEXTS})
            await client.post("/v1/embeddings", json={"input": ["a", "b" * 9000]})
    whole, left, refused = [line for line in lines if line["event"] == "batch"]
    assert (whole["request_id"], whole["outcome"], whole["texts"], whole["done"]) == (
        "mine",
        "stop",
        300,
        300,
    )
    assert whole["prompt_tokens"] == sum(len(text_tokens(text)) for text in TEXTS)
    assert left["outcome"] == "cancelled"
    assert (refused["outcome"], refused["done"]) == ("context_length_exceeded", 0)
    assert {line["log_level"] for line in lines if line["event"] == "request" and "refused" not in line} == {
        "debug"
    }
