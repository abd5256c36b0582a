"""Real preparation processes, with the embedded model's tokenizer and template."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from structlog.testing import capture_logs

from api.operator.process_table import processes
from api.preparers.preparers import Preparers
from scheduler.models.embedded_model import EMBEDDED_FOLDER
from scheduler.prompt.model_folder import inspect
from scheduler.prompt.preparation import Preparation
from scheduler.prompt.preparation_recipe import PreparationRecipe
from scheduler.service import Scheduler
from scheduler.telemetry.metrics import Metrics
from tests.api.client import client_of
from tests.api.preparers.service import long_chat
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

RECIPE = PreparationRecipe(inspect(EMBEDDED_FOLDER))
PATH = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def preparation() -> Preparation:
    return RECIPE.make()


@asynccontextmanager
async def real(
    preparation: Preparation, engine: Playback
) -> AsyncIterator[tuple[httpx.AsyncClient, Preparers, Scheduler]]:
    preparers = Preparers.of(1, os.environ, Metrics())
    preparers.add("tiny", RECIPE, preparation)
    scheduler = make_scheduler(
        engine, preparation=preparation, caches_elsewhere=partial(preparers.caches, "tiny")
    )
    async with running(scheduler) as nursery, client_of(scheduler, readers=preparers) as client:
        nursery.start_soon(preparers.run)
        with trio.fail_after(60):
            await until_ready(preparers)
        yield client, preparers, scheduler


async def until_ready(preparers: Preparers) -> None:
    while not preparers.ready:  # noqa: ASYNC110
        await trio.sleep(0.02)


def children() -> set[int]:
    """Those that prepare."""
    own = (one for one in processes() if one.parent == os.getpid())
    return {one.pid for one in own if " -m api.preparers " in one.command}


def test_a_process_prepares_and_is_replaced_and_ends(preparation: Preparation) -> None:
    """One after the other, as a start takes seconds."""
    engine = Playback("Yes.")

    async def scene() -> None:
        with capture_logs() as logged:
            await lives(logged)

    async def lives(logged: Sequence[Mapping[str, Any]]) -> None:
        async with real(preparation, engine) as (client, preparers, scheduler):
            (pid,) = children()
            body = long_chat(tools=[TOOL])
            for _ in range(2):
                assert (await client.post(PATH, json=body)).status_code == 200
            async with client_of(scheduler) as here:
                assert (await here.post(PATH, json=body)).status_code == 200
            pieces, texts = preparers.caches("tiny")
            # The second turn found what the first one left; this process has its own.
            assert pieces.kept_tokens > pieces.tokens / 3
            assert texts.kept_messages == texts.messages / 2
            assert pieces.held_bytes
            assert texts.held_bytes
            refused = await client.post(PATH, json=long_chat(tools=[TOOL], tool_choice="nothing"))
            assert refused.status_code == 400

            os.kill(pid, signal.SIGKILL)
            with trio.fail_after(60):
                while preparers.ready:  # noqa: ASYNC110
                    await trio.sleep(0.02)
                assert (await client.post(PATH, json=body)).status_code == 200
                await until_ready(preparers)
            assert preparers.report()["deaths"] == 1
            [death] = [one for one in logged if one["event"] == "preparation_process_ended"]
            assert death["reason"].startswith("it was killed by SIGKILL")
            assert (await client.post(PATH, json=body)).status_code == 200
            # Here and there, then and now.
            assert len(engine.submits) == 5
            assert len({tuple(submit.prompt) for submit in engine.submits}) == 1

    trio.run(scene)
    assert not children()
