"""Several models behind one API: requests go by `model`, operators load and unload."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock, trio_test

from api.served_models import ServedModels
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.shared.messages import ScriptedPlan
from scheduler.telemetry.metrics import Metrics
from tests.api.client import ASKS_PROGRESS, MODEL, app_of, chat, comments
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import FOLDER, make_scheduler

PLAN = ScriptedPlan(step_seconds=0.01)


@asynccontextmanager
async def farm(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Two models; `titles` is loaded by its first request."""
    metrics = Metrics()
    models = [
        Model(
            name,
            make_scheduler(
                LoopbackLauncher(),
                PLAN,
                folder=replace(FOLDER, context_tokens=context),
                load_at_start=name == "planner",
                must_start=False,
                metrics=metrics.of_model(name),
            ),
        )
        for name, context in (("planner", 40960), ("titles", 4096))
    ]
    fleet = Fleet(models)
    served = {
        "planner": replace(MODEL, names=("planner", "planner-too")),
        "titles": replace(MODEL, names=("titles",)),
    }
    app = app_of(ServedModels(fleet, served), **options)
    transport = httpx.ASGITransport(app)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fleet.run)
        await fleet.wait_started()
        async with httpx.AsyncClient(transport=transport, base_url="http://penstock") as client:
            yield client
        nursery.cancel_scope.cancel()


async def states(client: httpx.AsyncClient) -> dict[str, str]:
    listed = (await client.get("/v1/models")).json()["data"]
    return {model["id"]: model["state"] for model in listed}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", chat()),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 4}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 4}),
    ],
)
@trio_test
async def test_every_dialect_asks_a_model_by_its_name(
    autojump_clock: MockClock, path: str, body: dict[str, Any]
) -> None:
    async with farm() as client:
        assert await states(client) == {"planner": "loaded", "planner-too": "loaded", "titles": "unloaded"}
        one = (await client.get("/v1/models/titles")).json()
        assert (one["state"], one["max_model_len"], one["weights_bytes"]) == ("unloaded", 4096, None)
        assert (await client.post(path, json=body)).json()["model"] == "planner", "the first one"
        answer = (await client.post(path, json={**body, "model": "titles"})).json()
        assert answer["model"] == "titles"
        assert (await states(client))["titles"] == "loaded"
        metrics = (await client.get("/metrics")).text
        assert 'penstock_engines{condition="ready",model="titles"} 1.0' in metrics, (
            "a scrape is of every model"
        )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@trio_test
async def test_a_stream_says_what_it_waits_for(autojump_clock: MockClock, path: str) -> None:
    async with farm() as client:
        body: dict[str, Any] = {"model": "titles", "stream": True}
        body |= {"input": "hello", "max_output_tokens": 8} if path.endswith("responses") else chat()
        answer = await client.post(path, json=body, headers=ASKS_PROGRESS)
        assert "queued, waits for: titles to be loaded" in comments(answer.text)
        assert answer.text.count("data: ") > 2


@trio_test
async def test_operators_load_and_unload(autojump_clock: MockClock) -> None:
    async with farm() as client:
        assert (await client.post("/v1/models/titles/load")).status_code == 202
        await trio.sleep(1)
        assert (await states(client))["titles"] == "loaded"
        await client.post("/v1/models/planner-too/unload")
        await trio.sleep(1)
        assert (await states(client))["planner"] == "unloaded"
        assert (await client.get("/ready")).status_code == 200, "the next request loads it"
        assert (await client.post("/v1/models/nobody/load")).status_code == 404


@trio_test
async def test_reports_have_an_entry_for_each_model(autojump_clock: MockClock) -> None:
    async with farm() as client:
        report = (await client.get("/v1/scheduler")).json()
        assert set(report["models"]) == {"planner", "titles"}
        assert report["models"]["planner"]["engines"] == report["engines"]
        assert [one["condition"] for one in report["models"]["titles"]["engines"]] == ["unloaded"]
        assert (await client.get("/v1/cache", params={"model": "titles"})).status_code == 503
        assert (await client.get("/v1/cache", params={"model": "planner"})).status_code == 200
        assert (await client.get("/v1/cache", params={"model": "nobody"})).status_code == 404
