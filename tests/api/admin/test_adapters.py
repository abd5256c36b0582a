"""LoRA adapters as clients see them: names and listings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
from trio.testing import MockClock, trio_test

from scheduler.config import EngineConfig
from scheduler.engines.adapters import source_of
from scheduler.service import Scheduler
from scheduler.shared.messages import ScriptedPlan
from tests.api.client import chat, client_of
from tests.fakes.adapter_folders import adapter_folder
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running


def with_adapters(
    folder: Path, *names: str, launcher: LoopbackLauncher | None = None, **options: Any
) -> Scheduler:
    sources = tuple(source_of(name, adapter_folder(folder / name, name.encode())) for name in names)
    plan = ScriptedPlan(step_seconds=0.01)
    engine = EngineConfig("scripted", "none", max_slots=4, scripted=plan, adapters=sources)
    return make_scheduler(launcher or LoopbackLauncher(), engine=engine, **options)


async def text_of(client: httpx.AsyncClient, model: str, **fields: Any) -> str:
    response = await client.post("/v1/chat/completions", json=chat(model=model, **fields))
    assert response.status_code == 200, response.text
    body = response.json()
    assert body["model"] == model
    text: str = body["choices"][0]["message"]["content"]
    return text


@trio_test
async def test_a_model_s_name_and_an_adapter_s_name_ask_for_the_adapter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    scheduler = with_adapters(tmp_path, "red", "blue")
    async with running(scheduler), client_of(scheduler) as client:
        base = await text_of(client, "tiny")
        red = await text_of(client, "tiny:red")
        blue = await text_of(client, "tiny:blue")
        assert len({base, red, blue}) == 3
        assert await text_of(client, "owner/alias:red") == red, "any name of the model"
        assert await text_of(client, "red") == red, "no model has this name"


@trio_test
async def test_models_list_adapters_with_their_parent(tmp_path: Path, autojump_clock: MockClock) -> None:
    scheduler = with_adapters(tmp_path, "red")
    async with running(scheduler), client_of(scheduler) as client:
        listed = (await client.get("/v1/models")).json()
        assert [(one["id"], one.get("parent")) for one in listed["data"]] == [
            ("tiny", None),
            ("owner/alias", None),
            ("tiny:red", "tiny"),
        ]
        assert listed["last_id"] == "tiny:red"
        one = (await client.get("/v1/models/owner/alias:red")).json()
        assert (one["id"], one["parent"]) == ("owner/alias:red", "owner/alias")
        assert (await client.get("/v1/models/tiny:blue")).status_code == 404
        assert str(tmp_path) not in str(listed), "clients need not know where it lies"


@trio_test
async def test_a_client_cannot_name_an_adapter_s_prefixes_by_a_salt(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    scheduler = with_adapters(tmp_path, "red")
    (source,) = scheduler.pool.adapters.present
    prompt = "one and the same long prompt " * 40
    async with running(scheduler), client_of(scheduler) as client:
        await client.post("/v1/chat/completions", json=chat(prompt, model="tiny:red"))
        for salt in (f"\0adapter:{source.key}\0", source.key):
            response = await client.post("/v1/chat/completions", json=chat(prompt, cache_salt=salt))
            assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
