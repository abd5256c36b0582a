"""Minimal bodies of every dialect: what of the model's defaults their requests get, and what answers say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import save
from trio.testing import MockClock, trio_test

from api.options.options import load
from api.served_models import ServedModel
from scheduler.engine.backend import BackendFacts
from scheduler.engine.scripted_backend import ScriptedBackend
from scheduler.prompt import model_folder
from scheduler.request import ChatPrompt, GenerationRequest, Sampling
from scheduler.service import Scheduler
from scheduler.shared.messages import Ready, ScriptedPlan
from tests.api.client import client_of
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import make_scheduler, running

FILE = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
_TURNS = [{"role": "user", "content": "hello"}]
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": _TURNS},
    "/v1/completions": {"prompt": "hello"},
    "/v1/responses": {"input": "hello"},
    "/v1/messages": {"messages": _TURNS, "max_tokens": 16},
}
SHORT = ScriptedPlan(step_seconds=0.01, stop_after=4)
"""Minimal bodies have no max_tokens."""
CHATS = [path for path in MINIMAL if path != "/v1/completions"]


NAMES = "plain,coder:temperature=0.2,thinking=off,auto:thinking=auto"


def served(folder: Path, content: dict[str, Any], options: dict[str, Any] | None = None) -> ServedModel:
    """A model whose file says `content`, under NAMES, with `--default-` options."""
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(save({}))
    (folder / "generation_config.json").write_text(json.dumps(content))
    given = {f"default_{name}": str(value) for name, value in (options or {}).items()}
    settings = load({"served_model_name": NAMES, **given})
    defaults, ignored = settings.defaults("", model_folder.inspect(folder).generation_config)
    assert not ignored
    return ServedModel(tuple(defaults), 1_700_000_000, defaults=defaults)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """Every request that reaches the scheduler."""
    found: list[GenerationRequest] = []
    stream = Scheduler.stream

    def recorded(scheduler: Scheduler, requests: list[GenerationRequest]) -> Any:
        found.extend(requests)
        return stream(scheduler, requests)

    monkeypatch.setattr(Scheduler, "stream", recorded)
    return found


async def post(of: ServedModel, path: str, **fields: Any) -> dict[str, Any]:
    scheduler = make_scheduler(LoopbackLauncher(), SHORT)
    async with running(scheduler), client_of(scheduler, model=of) as client:
        response = await client.post(path, json=MINIMAL[path] | fields)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def sampling_of(request: GenerationRequest) -> dict[str, Any]:
    """What is not neutral, without the seed."""
    drawn, neutral = request.sampling, Sampling()
    names = [name for name in Sampling.__struct_fields__ if name != "seed"]
    return {name: getattr(drawn, name) for name in names if getattr(drawn, name) != getattr(neutral, name)}


@pytest.mark.parametrize(
    ("options", "model", "fields", "expected"),
    [
        ({}, None, {"temperature": None}, FILE),
        (
            {"temperature": 0.4, "min_p": 0.1, "top_k": 0},
            "coder",
            {"top_p": 0.5},
            {"temperature": 0.2, "min_p": 0.1, "top_p": 0.5},
        ),
        ({}, "plain", {"temperature": 1, "top_p": 1}, {"top_k": 20}),
    ],
    ids=["file", "each", "body neutral"],
)
@pytest.mark.parametrize("path", MINIMAL)
@trio_test
async def test_every_step_of_the_order(
    path: str,
    options: dict[str, Any],
    model: str | None,
    fields: dict[str, Any],
    expected: dict[str, Any],
    tmp_path: Path,
    asked: list[GenerationRequest],
    autojump_clock: MockClock,
) -> None:
    """Body, served name, option, file, neutral; an explicit neutral value turns a default off."""
    answer = await post(served(tmp_path, FILE, options), path, model=model, **fields)
    assert [sampling_of(request) for request in asked] == [expected]
    assert answer["model"] == (model or "plain"), "the names may answer differently"
    # OpenAI's object has both fields.
    assert answer.get("temperature", expected.get("temperature", 1)) == expected.get("temperature", 1)


_TURNED_ON: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"reasoning_effort": "high"},
    "/v1/responses": {"reasoning": {"effort": "high"}},
    "/v1/messages": {"thinking": {"type": "enabled", "budget_tokens": 4}},
}


@pytest.mark.parametrize("path", CHATS)
@trio_test
async def test_thinking_follows_the_same_order(
    path: str, tmp_path: Path, asked: list[GenerationRequest], autojump_clock: MockClock
) -> None:
    """An option turns it on, a name off or back to the template's way, and a body has the last word: by its
    own field or the template's option."""
    model = served(tmp_path, {}, {"thinking": "on"})
    sent: list[tuple[str, dict[str, Any], bool | None]] = [
        ("plain", {}, True),
        ("coder", {}, False),
        ("auto", {}, None),
        ("coder", _TURNED_ON[path], True),
        ("plain", {"chat_template_kwargs": {"enable_thinking": False}}, False),
        *(
            ("coder", {"chat_template_kwargs": {name: "deep"}}, None)
            for name in ("thinking", "enable_thinking")
        ),
        ("coder", {"chat_template_kwargs": {"custom": True}}, False),
    ]
    for name, fields, _ in sent:
        await post(model, path, model=name, **fields)
    prompts = [request.prompt for request in asked]
    enabled = [prompt.reasoning.enabled for prompt in prompts if isinstance(prompt, ChatPrompt)]
    assert enabled == [expected for _, _, expected in sent]


@trio_test
async def test_counting_renders_what_is_answered(
    tmp_path: Path, asked: list[GenerationRequest], autojump_clock: MockClock
) -> None:
    """`count_tokens` and `/tokenize` take the name's thinking, too: it is part of the prompt."""
    rendered: list[Any] = []
    scheduler = make_scheduler(LoopbackLauncher())
    tokenize = scheduler.tokenize

    async def recorded(prompt: Any, tenant: str = "") -> Any:
        rendered.append(prompt.reasoning.enabled)
        return await tokenize(prompt, tenant)

    scheduler.tokenize = recorded  # type: ignore[method-assign]
    async with running(scheduler), client_of(scheduler, model=served(tmp_path, {})) as client:
        for path in ("/v1/messages/count_tokens", "/tokenize"):
            for name in ("plain", "coder"):
                response = await client.post(path, json={"model": name, "messages": _TURNS})
                assert response.status_code == 200, response.text
    assert rendered == [None, False, None, False]


@trio_test
async def test_the_listing_shows_each_names_defaults_and_their_sources(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    model = served(tmp_path, FILE, {"min_p": 0.1})
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler, model=model) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        alone = (await client.get("/v1/models/coder")).json()
    plain, coder, _ = listed
    assert alone == coder
    assert (plain["default_thinking"], coder["default_thinking"]) == ("auto", "off")
    assert coder["default_sampling_params"] == {
        "temperature": 0.2,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    assert coder["default_sources"] == {
        "temperature": "served_model_name",
        "top_p": "generation_config",
        "top_k": "generation_config",
        "min_p": "option",
        "repetition_penalty": "neutral",
        "presence_penalty": "neutral",
        "frequency_penalty": "neutral",
        "thinking": "served_model_name",
    }


class _Described(ScriptedBackend):
    """An engine whose check at load found something, and that verifies drafts."""

    def describe(self) -> Ready:
        return msgspec.structs.replace(super().describe(), fallbacks=("one_row",))

    @property
    def facts(self) -> BackendFacts:
        return replace(super().facts, verified_tokens=100)


@trio_test
async def test_the_listing_says_what_the_engine_found(autojump_clock: MockClock) -> None:
    """Once one is ready."""
    scheduler = make_scheduler(LoopbackLauncher(lambda load: _Described(load.scripted)))
    async with client_of(scheduler) as client:
        before = (await client.get("/v1/models/tiny")).json()
        async with running(scheduler):
            after = (await client.get("/v1/models/tiny")).json()
    assert (before["fallbacks"], before["drafts"]) == ([], None)
    assert (after["fallbacks"], after["drafts"]) == (["one_row"], True)
