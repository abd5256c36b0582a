"""Tools and reasoning through `POST /v1/chat/completions`, with a model whose text is given."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from trio.testing import MockClock, trio_test

from scheduler.answer.answer_format import AnswerFormat
from tests.api.client import chat, client_of, events, prompts, served
from tests.fakes.playback import Playback
from tests.fakes.scheduling import make_scheduler, running
from tests.scheduler.answer.notations import form

HERMES = form("json_tools", "think")
SAID = (
    '<think>\nwhy\n</think>\n\nI look.\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n'
    "</tool_call>"
)
TOOLS = [
    {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
]


async def ask(*texts: str, answer_format: AnswerFormat = HERMES, **fields: Any) -> tuple[int, Any]:
    """Send one request to an engine that writes `texts`; everything has left the engine afterwards."""
    async with served(Playback(*texts), answer_format=answer_format) as client:
        return await post(client, **fields)


async def post(client: httpx.AsyncClient, **fields: Any) -> tuple[int, Any]:
    body = chat(**{"max_tokens": 1000, "tools": TOOLS, **fields})
    response = await client.post("/v1/chat/completions", json=body)
    return response.status_code, events(response.text) if body.get("stream") else response.json()


def joined(chunks: list[Any], choice: int = 0) -> dict[str, Any]:
    """Join the deltas as the official client does."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for entry in chunk["choices"]:
            if entry["index"] != choice:
                continue
            delta = entry["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"id": call["id"], "type": call["type"], "function": {}})
                    message["tool_calls"][-1]["function"] = dict(call["function"])
                else:
                    message["tool_calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
    return message


@trio_test
async def test_a_message_that_only_calls_has_no_content(autojump_clock: MockClock) -> None:
    """Null, as in OpenAI's API."""
    _, body = await ask(SAID.split("I look.\n")[1])
    assert body["choices"][0]["message"]["content"] is None
    assert "reasoning_content" not in body["choices"][0]["message"]


@trio_test
async def test_the_golden_transcript_of_a_call(autojump_clock: MockClock) -> None:
    """Chunk by chunk: the role, reasoning, text, the call's name, its arguments, the finish reason, the
    end."""
    _, chunks = await ask('<tool_call>{"name": "get_time", "arguments": {"n": 1}}</tool_call>', stream=True)
    *chunks, done = chunks
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    call_id = deltas[1]["tool_calls"][0]["id"]
    function = {"name": "get_time", "arguments": ""}
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"n": 1}'}}]},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 3 + ["tool_calls"]
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks)


@trio_test
async def test_one_call_at_a_time_ends_the_row(autojump_clock: MockClock) -> None:
    """parallel_tool_calls: false. The row does not wait for what the model would write after it."""
    call = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
    _, body = await ask(call + call + "x" * 900, parallel_tool_calls=False)
    assert len(body["choices"][0]["message"]["tool_calls"]) == 1
    assert body["choices"][0]["finish_reason"] == "tool_calls"
    assert body["usage"]["completion_tokens"] <= len(call)


@trio_test
async def test_choices_share_the_prompt_but_no_seed(autojump_clock: MockClock) -> None:
    """n: each index has its own text and finish reason; the prompt counts once; the first has the given
    seed."""
    async with served(launcher := Playback("one", "two two", "three")) as client:
        body = chat(n=3, seed=7, max_tokens=100)
        whole = (await client.post("/v1/chat/completions", json=body)).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["one", "two two", "three"]
    assert whole["usage"]["prompt_tokens"] == len(launcher.submits[0].prompt)
    assert whole["usage"]["completion_tokens"] == len("one" + "two two" + "three") + 3
    assert len({tuple(submit.prompt) for submit in launcher.submits}) == 1
    seeds = [submit.sampling.seed for submit in launcher.submits]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


@trio_test
async def test_streamed_choices_come_interleaved(autojump_clock: MockClock) -> None:
    """Each has its role and its finish reason; one usage and one end mark for all."""
    _, chunks = await ask(
        "one", "two two", stream=True, n=2, tools=None, stream_options={"include_usage": True}
    )
    *chunks, usage, done = chunks
    assert done == "[DONE]"
    assert usage["usage"]["completion_tokens"] == len("one" + "two two") + 2
    assert [joined(chunks, choice)["content"] for choice in (0, 1)] == ["one", "two two"]
    for choice in (0, 1):
        own = [entry for chunk in chunks for entry in chunk["choices"] if entry["index"] == choice]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [entry["finish_reason"] for entry in own if entry["finish_reason"]] == ["stop"]
    order = [chunk["choices"][0]["index"] for chunk in chunks]
    assert order != sorted(order)


@trio_test
async def test_more_choices_than_the_queue_holds_are_refused(autojump_clock: MockClock) -> None:
    """Before anything is queued, never half a request; and without a suggestion to retry."""
    launcher = Playback("x")
    scheduler = make_scheduler(launcher, max_queue=2)
    async with running(scheduler), client_of(scheduler) as client:
        response = await client.post("/v1/chat/completions", json=chat(n=3))
        assert scheduler.operations.statistics().queued == 0
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert launcher.submits == []


@pytest.mark.parametrize(
    ("fields", "member"),
    [
        ({"continue_final_message": True, "add_generation_prompt": False}, {}),
        ({"add_generation_prompt": False}, {}),
        ({}, {"prefix": True}),
    ],
)
@trio_test
async def test_the_assistants_last_message_can_be_continued(
    fields: dict[str, Any], member: dict[str, Any], autojump_clock: MockClock
) -> None:
    """In vLLM's form, and in DeepSeek's and Mistral's: `prefix` in the message."""
    messages = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "Hello", **member}]
    async with served(launcher := Playback(" world")) as client:
        body = {**chat(**fields), "messages": messages}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
    assert prompts(launcher)[0].endswith("<assistant>Hello")
    assert answer["choices"][0]["message"]["content"] == " world"


@pytest.mark.parametrize("field", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
@trio_test
async def test_reasoning_is_left_out_for_who_asks(field: dict[str, Any], autojump_clock: MockClock) -> None:
    async with served(Playback("<think>why</think>because"), answer_format=HERMES) as client:
        for fields, shown in ((field, False), ({}, True)):
            whole = await client.post("/v1/chat/completions", json=chat(**{"max_tokens": 60, **fields}))
            assert whole.json()["choices"][0]["message"]["content"] == "because"
            assert ("reasoning_content" in whole.json()["choices"][0]["message"]) == shown
            streamed = await client.post(
                "/v1/chat/completions", json=chat(**{"max_tokens": 60, "stream": True, **fields})
            )
            deltas = [one["choices"][0]["delta"] for one in events(streamed.text)[:-1]]
            assert "".join(one.get("content", "") for one in deltas) == "because"
            assert any("reasoning_content" in one for one in deltas) == shown
