"""An httpx client for the application over an in-process scheduler. No socket, virtual time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
import trio
from fastapi import FastAPI

from api.app import make_app
from api.dialects.responses.running import RunningResponses
from api.served_models import ServedModel, ServedModels
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.service import Scheduler
from tests.fakes.applications import forget_handlers, remember
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running

remember()
MODEL = ServedModel(("tiny", "owner/alias"), created=1_700_000_000)


def several(schedulers: Mapping[str, Scheduler]) -> ServedModels:
    """Return models under these names, all of them always loaded."""
    fleet = Fleet([Model(name, scheduler, pinned=True) for name, scheduler in schedulers.items()])
    return ServedModels(fleet, {name: replace(MODEL, names=(name,)) for name in schedulers})


def app_of(models: ServedModels, **options: Any) -> FastAPI:
    """`options`: what else `make_app` takes."""
    forget_handlers()
    return make_app(models, **{"stall_seconds": 60.0, **options})


@asynccontextmanager
async def client_of(
    scheduler: Scheduler, *, model: ServedModel = MODEL, keep_alive_seconds: float = 15.0, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """`options`: what else `app_of` takes."""
    responses = RunningResponses()
    app = app_of(
        ServedModels.of(scheduler, model), keep_alive_seconds=keep_alive_seconds, running=responses, **options
    )
    async with trio.open_nursery() as nursery, _client(app) as client:
        await nursery.start(responses.run)
        yield client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served(launcher: LoopbackLauncher, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a scheduler with this engine, which is idle afterwards. `settings`: `make_scheduler`'s."""
    async with running(scheduler := make_scheduler(launcher, **settings)), client_of(scheduler) as client:
        yield client
        await scheduler.wait_idle()


def prompts(launcher: Playback) -> list[str]:
    return [bytes(submit.prompt.tolist()).decode() for submit in launcher.submits]


def _client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=True)
    return httpx.AsyncClient(transport=transport, base_url="http://penstock")


@cache
def _idle_server() -> tuple[Scheduler, FastAPI]:
    """A server that never runs, for what is refused before anything waits."""
    scheduler = make_scheduler(LoopbackLauncher())
    return scheduler, app_of(ServedModels.of(scheduler, MODEL))


def refused(path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error, in its dialect's shape, of a body that is refused with 400; nothing is queued."""

    async def post() -> httpx.Response:
        scheduler, app = _idle_server()
        with trio.fail_after(20):
            async with _client(app) as client:
                response = await client.post(path, json=body)
        statistics = scheduler.operations.statistics()
        assert (statistics.queued, statistics.in_engine) == (0, 0)
        return response

    response = trio.run(post)
    assert response.status_code == 400
    answer = response.json()
    error: dict[str, Any] = answer["error"]
    assert error["type"] == "invalid_request_error"
    if path.startswith("/v1/messages"):
        assert (set(answer), set(error)) == ({"type", "error", "request_id"}, {"type", "message"})
        assert (answer["type"], answer["request_id"]) == ("error", response.headers["request-id"])
    else:
        assert set(error) == {"message", "type", "param", "code"}
    return error


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    """Return a body with one user message."""
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **fields}


def events(body: str) -> list[Any]:
    """Return the decoded data of a stream's events; `[DONE]` stays text. Comments are omitted."""
    found: list[Any] = []
    for line in body.split("\n"):
        if line.startswith("data: "):
            payload = line.removeprefix("data: ")
            found.append(payload if payload == "[DONE]" else json.loads(payload))
    return found


ASKS_PROGRESS = {"x-penstock-progress": "comments"}
"""The header of who wants comments about a request's progress."""


def comments(body: str) -> list[str]:
    return [line.removeprefix(": ") for line in body.split("\n") if line.startswith(":")]
