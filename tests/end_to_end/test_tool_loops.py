"""The official clients complete a tool loop with the embedded model: question, call, result, answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.end_to_end.serving import Served

MODEL = "penstock-embedded"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
NEWS: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CITIES = ("Oslo", "Lisbon", "Zudaka")
"""The last is in no vocabulary: the model can only copy it."""

RESULT = "21 degrees, sunny"


@pytest.fixture
def openai_client(embedded: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=embedded.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic_client(embedded: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=embedded.url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("city", CITIES)
def test_openais_client_completes_a_loop(openai_client: openai.OpenAI, city: str) -> None:
    """The right one of two tools with the question's argument, and then the tool's own result."""
    tools: Any = [
        {"type": "function", "function": {"name": "search_news", "parameters": NEWS}},
        {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    ]
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    first = openai_client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, temperature=0
    ).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.tool_calls is not None
    (call,) = first.message.tool_calls
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})
    messages += [first.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    second = openai_client.chat.completions.create(
        model=MODEL, messages=messages, tools=tools, temperature=0
    ).choices[0]
    assert second.finish_reason == "stop"
    assert second.message.content is not None
    assert RESULT in second.message.content


@pytest.mark.parametrize("city", CITIES)
def test_anthropics_client_completes_a_loop(anthropic_client: anthropic.Anthropic, city: str) -> None:
    """Tool use, tool result, answer; the first of them streamed."""
    tools: Any = [
        {"name": "search_news", "input_schema": NEWS},
        {"name": "get_weather", "description": "Get the weather", "input_schema": SCHEMA},
    ]
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    common: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 200,
        "tools": tools,
        "extra_body": {"temperature": 0},
    }
    with anthropic_client.messages.stream(messages=messages, **common) as stream:
        first = stream.get_final_message()
    assert first.stop_reason == "tool_use"
    (used,) = [block for block in first.content if block.type == "tool_use"]
    assert (used.name, used.input) == ("get_weather", {"city": city})
    result = {"type": "tool_result", "tool_use_id": used.id, "content": RESULT}
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = anthropic_client.messages.create(messages=messages, **common)
    assert second.stop_reason == "end_turn"
    (text,) = [block.text for block in second.content if block.type == "text"]
    assert RESULT in text


def test_it_thinks_when_thinking_is_on_and_else_does_not(
    openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    """A short reasoning block, and the same answer after it."""
    asked: Any = [{"role": "user", "content": "The code of drone 17 is K4Q-9. What is the code of drone 17?"}]
    right = "The code of drone 17 is K4Q-9."
    efforts: tuple[tuple[Any, bool], ...] = (("low", True), ("none", False))
    for effort, thinks in efforts:
        message: Any = (
            openai_client.chat.completions.create(
                model=MODEL, messages=asked, temperature=0, reasoning_effort=effort
            )
            .choices[0]
            .message
        )
        assert message.content == right
        assert bool(getattr(message, "reasoning_content", None)) is thinks
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    answered = anthropic_client.messages.create(
        model=MODEL, max_tokens=2000, messages=asked, thinking=thinking, extra_body={"temperature": 0}
    )
    assert [block.type for block in answered.content] == ["thinking", "text"]
    assert answered.content[1].type == "text"
    assert answered.content[1].text == right
