"""Bad input gets a clear error in OpenAI's shape with the right status, and never reaches the engine."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from trio.testing import MockClock, trio_test

from api.answers.errors import NO_KEY, WRONG_KEY, ApiError, from_scheduler
from api.served_models import ServedModels
from scheduler.engine.scripted_backend import KV_BYTES_PER_TOKEN
from scheduler.errors import ModelNotFound, PromptTooLong, QueueFull, SchedulerError, TenantLimit
from tests.api.client import MODEL, chat, client_of, refused
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import ask, make_scheduler, running
from tests.scheduler.requests.records import make_record

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    # (what is added to a valid body, the parameter named, words in the message)
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "--tool-parser"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name", "at least 1"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}, "tools.0.function", ""),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "no tools"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "cannot run 'file_search'"),
    ({"tool_choice": "maybe"}, "tool_choice", "'auto', 'none', 'required'"),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "'json_schema'"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "the JSON text of one"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "", "regex and structured_outputs.choice"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "nothing can follow"),
    ({"structured_outputs": {"regex": "a("}}, "structured_outputs.regex", "unclosed group"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"items": {"type": "t"}}}}},
        "response_format.json_schema.schema.items.type",
        "'t' is not valid",
    ),
    ({"min_tokens": 9}, "min_tokens", "at most 8"),
    ({"top_logprobs": 3}, "", "top_logprobs needs logprobs: true"),
    ({"logprobs": 3}, "logprobs", "boolean"),
    ({"stop_token_ids": [9999]}, "stop_token_ids", "vocabulary of 8192"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "'none'"),
    ({"add_generation_prompt": False}, "", "the assistant's"),
    ({"continue_final_message": True}, "", "the assistant's"),
    ({"n": 0}, "n", "n:"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages.0.role", "system"),
    ({"messages": [{"content": "x"}]}, "messages.0.role", "required"),
    ({"temperature": 3}, "temperature", "less than or equal to 2"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "", "differ"),
    ({"stop": ""}, "stop", "at least 1 character"),
    ({"stream_options": {"include_usage": True}}, "", "stream: true"),
    ({"logit_bias": {"9999": 1}}, "logit_bias", "vocabulary of 8192"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "100"),
    *(
        ({"chat_template_kwargs": {name: "x"}}, "chat_template_kwargs", f"a request cannot set '{name}'")
        for name in ("chat_template", "documents", "tools", "eos_token", "raise_exception")
    ),
    ({"max_tokens": 50_000}, "max_tokens", "40960"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], param: str, words: str) -> None:
    """400, `param` names the field as the client wrote it, and the message says what is wrong."""
    error = refused("/v1/chat/completions", {**chat(), **fields})
    assert error["type"] == "invalid_request_error"
    assert (error["param"] or "").startswith(param)
    assert words in error["message"]


@trio_test
async def test_a_template_failure_is_the_clients_error(autojump_clock: MockClock) -> None:
    """400 with the template's own message; streaming requests get it as a status, not as an event."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        for stream in (False, True):
            response = await client.post("/v1/chat/completions", json=chat("refuse me", stream=stream))
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "chat_template_error"
            assert response.json()["error"]["param"] == "messages"


@trio_test
async def test_a_prompt_beyond_the_context_names_both_numbers(autojump_clock: MockClock) -> None:
    """With OpenAI's error code, so that agents compact their history and go on."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat("x" * 41_000))
        asked = await client.post("/v1/chat/completions", json=chat(max_tokens=50_000))
    assert response.status_code == asked.status_code == 400
    error = response.json()["error"]
    assert error["code"] == asked.json()["error"]["code"] == "context_length_exceeded"
    assert "40960" in error["message"]
    assert str(len("<user>\n<assistant>") + 41_000) in error["message"]


@pytest.mark.parametrize("stream", [False, True])
@trio_test
async def test_memory_that_never_holds_a_prompt_is_a_shorter_context(
    stream: bool, autojump_clock: MockClock
) -> None:
    """hermes-agent#52261, #60103: an agent shortens its history for these words alone, and before, by what
    `/v1/models` says. The operator learns which option it is."""
    scheduler = make_scheduler(LoopbackLauncher(), kv_cache_bytes=500 * KV_BYTES_PER_TOKEN)
    async with running(scheduler), client_of(scheduler) as client:
        listed, *_ = (await client.get("/v1/models")).json()["data"]
        tokenized = await client.post("/tokenize", json={"prompt": "x"})
        openai = await client.post("/v1/chat/completions", json=chat("x" * 600, stream=stream))
        long = chat("x" * 600, max_tokens=1, stream=stream)
        anthropic = await client.post("/v1/messages", json=long)
        fitting = await client.post("/v1/chat/completions", json=chat("x" * 400, max_tokens=1))
    assert listed["max_model_len"] == tokenized.json()["max_model_len"] == 500
    assert (openai.status_code, anthropic.status_code, fitting.status_code) == (400, 400, 200)
    error, tokens = openai.json()["error"], len("<user>\n<assistant>") + 600
    assert error["code"] == "context_length_exceeded"
    assert error["message"] == (
        f"This model's maximum context length is 500 tokens. However, your request has {tokens} input tokens."
        " Please reduce the length of the messages. The KV cache has no room for more: --kv-cache-bytes."
    )
    assert anthropic.json()["error"]["message"] == f"prompt is too long: {tokens} tokens > 500 maximum"


@trio_test
async def test_while_draining_new_requests_get_503(autojump_clock: MockClock) -> None:
    """With Retry-After, and `/ready` reports the same."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        assert (await client.get("/ready")).status_code == 200
        scheduler.start_drain()
        response = await client.post("/v1/chat/completions", json=chat())
        ready = await client.get("/ready")
    assert response.status_code == ready.status_code == 503
    assert response.json()["error"]["code"] == "shutting_down"
    assert int(response.headers["retry-after"]) >= 1
    assert ready.json()["status"] == "draining"


@trio_test
async def test_an_unknown_model_is_a_404_that_names_the_served_ones(autojump_clock: MockClock) -> None:
    """Any of the served names works, also one with a slash; no name means the only model."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat(model="gpt-9"))
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert "'tiny'" in response.json()["error"]["message"]
        assert (await client.post("/v1/chat/completions", json=chat(model="owner/alias"))).status_code == 200
        assert (await client.get("/v1/models/owner/alias")).json()["id"] == "owner/alias"
        assert (await client.get("/v1/models/nobody")).status_code == 404
        listed = (await client.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == ["tiny", "owner/alias"]
    assert {listed["data"][0][name] for name in ("max_model_len", "context_length", "max_input_tokens")} == {
        40960
    }


@trio_test
async def test_paths_and_methods_that_are_not_ours_get_the_same_shape(autojump_clock: MockClock) -> None:
    """404 and 405 as error objects, for clients that parse every answer."""
    scheduler = make_scheduler(LoopbackLauncher())
    async with running(scheduler), client_of(scheduler) as client:
        missing = await client.get("/v1/nothing")
        method = await client.get("/v1/chat/completions")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "begin with /v1" in missing.json()["error"]["message"]
    assert (method.status_code, method.json()["error"]["code"]) == (405, "method_not_allowed")
    assert method.headers["allow"] == "POST"


TOO_LONG = PromptTooLong(41_000, None, 40_960, param="messages")
TOO_MUCH = PromptTooLong(7_000, 50_000, 40_960, param="max_tokens")
PATTERNS = [
    (TOO_LONG, "openai", "pi", r"maximum context length is \d+ tokens"),
    (TOO_LONG, "openai", "Hermes Agent", r"maximum context length is 40960"),
    (TOO_LONG, "anthropic", "Claude Code, pi", r"prompt is too long: 41000 tokens > 40960"),
    (
        TOO_MUCH,
        "openai",
        "Hermes Agent",
        r"requested 50000 output tokens and your prompt contains 7000 input",
    ),
    (TOO_MUCH, "anthropic", "Claude Code", r"`max_tokens` exceed context limit: (\d+) \+ (\d+) > (\d+)"),
    (TOO_MUCH, "anthropic", "Strands", r"input and output tokens exceed your context limit"),
    (TOO_MUCH, "anthropic", "pi", r"maximum context length is \d+ tokens"),
    (TOO_MUCH, "anthropic", "Hermes Agent", r"prompt contains 7000 input"),
    (TenantLimit, "openai", "pi, Hermes Agent", r"rate limit"),
    (TenantLimit, "openai", "Codex", r"try again in\s*(\d+(?:\.\d+)?)\s*(s|ms|seconds?)"),
    (TenantLimit, "anthropic", "Claude Code", r'"type":"rate_limit_error"'),
    (QueueFull, "openai", "pi, Hermes Agent", r"overloaded"),
    (QueueFull, "anthropic", "Claude Code", r'"type":"overloaded_error"'),
    (ModelNotFound, "openai", "Hermes Agent", r"does not exist"),
    (ModelNotFound, "anthropic", "Claude Code", r'"not_found_error","message":"model: '),
    (WRONG_KEY, "openai", "litellm", r"incorrect api key provided"),
    (WRONG_KEY, "anthropic", "Claude Code", r"x-api-key"),
    (NO_KEY, "openai", "OpenAI's own words", r"you didn't provide an api key"),
    (NO_KEY, "anthropic", "Claude Code", r"x-api-key"),
]
"""What an agent's own code looks for in an error's body: pi-ai 0.74.2, Hermes Agent 0.19.0, Claude Code
2.1.197, Codex 0.169.0. Functions of litellm and Strands are called in `tests/clients`."""


@pytest.mark.parametrize(("error", "dialect", "agent", "pattern"), PATTERNS)
def test_an_agent_finds_what_its_code_looks_for(error: Any, dialect: str, agent: str, pattern: str) -> None:
    if isinstance(error, type):
        with pytest.raises(error) as caught:
            provoke(error)
        error = caught.value
    sent = error if isinstance(error, ApiError) else from_scheduler(error)
    body = sent.openai_body() if dialect == "openai" else sent.anthropic_body()
    assert re.search(pattern, json.dumps(body, separators=(",", ":")), re.IGNORECASE), (agent, body)


def provoke(error: type[SchedulerError]) -> None:
    """Have the server make an error of this kind."""
    if error is ModelNotFound:
        ServedModels.of(make_scheduler(LoopbackLauncher()), MODEL).check("gpt-9")
    scheduler = make_scheduler(LoopbackLauncher(), max_queue=1, max_queue_per_tenant=1)
    scheduler.queue.push(make_record(1, tenant="a" if error is TenantLimit else "b"), 0.0)
    scheduler.pool.admission.admit(ask(tenant="a"), 0.0, prompt_tokens=0)
