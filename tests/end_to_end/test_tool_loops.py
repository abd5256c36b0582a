"""The official clients complete a tool loop with the embedded model, and with its weights under a template
without tools: question, call, result, answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from scheduler.models.embedded_model import EMBEDDED_FOLDER
from tests.end_to_end.serving import Served, serving
from tests.scheduler.prompt.test_generic_tools import CHATML

MODEL = "penstock-embedded"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
NEWS: dict[str, Any] = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SCHEMAS = {"search_news": NEWS, "get_weather": SCHEMA}
CITIES = ("Lisbon", "Zudaka")
"""The last is in no vocabulary: the model can only copy it."""

RESULT = "21 degrees, sunny"


def openai_loop(served: Served, city: str, names: tuple[str, ...], choice: Any) -> tuple[Any, Any]:
    """Return the answers before and after the call of the right tool with the question's argument."""
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 200}
    functions = [{"name": name, "description": name, "parameters": SCHEMAS[name]} for name in names]
    asked["tools"] = [{"type": "function", "function": function} for function in functions]
    messages: list[Any] = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        first = client.chat.completions.create(messages=messages, tool_choice=choice, **asked)
        answer = first.choices[0]
        assert answer.finish_reason == "tool_calls"
        assert answer.message.tool_calls is not None
        call, *_ = answer.message.tool_calls
        assert call.type == "function"
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})
        messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
        return first, client.chat.completions.create(messages=messages, **asked)


@pytest.mark.parametrize("city", CITIES)
def test_openais_client_completes_a_loop(embedded: Served, city: str) -> None:
    _, second = openai_loop(embedded, city, ("search_news", "get_weather"), "auto")
    assert second.choices[0].finish_reason == "stop"
    assert RESULT in second.choices[0].message.content


@pytest.mark.parametrize("city", CITIES)
def test_anthropics_client_completes_a_loop(embedded: Served, city: str) -> None:
    """Tool use, tool result, answer; the first of them streamed."""
    tools: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200, "messages": messages, "tools": tools}
    asked["extra_body"] = {"temperature": 0}
    with anthropic.Anthropic(base_url=embedded.url, api_key="unused", max_retries=0) as client:
        with client.messages.stream(**asked) as stream:
            first = stream.get_final_message()
        assert first.stop_reason == "tool_use"
        (used,) = [block for block in first.content if block.type == "tool_use"]
        assert (used.name, used.input) == ("get_weather", {"city": city})
        result = {"type": "tool_result", "tool_use_id": used.id, "content": RESULT}
        messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
        second = client.messages.create(**asked)
    assert second.stop_reason == "end_turn"
    (text,) = [block.text for block in second.content if block.type == "text"]
    assert RESULT in text


def test_it_thinks_when_thinking_is_on_and_else_does_not(embedded: Served) -> None:
    """A short reasoning block, and the same answer after it."""
    asked: Any = [{"role": "user", "content": "The code of drone 17 is K4Q-9. What is the code of drone 17?"}]
    right = "The code of drone 17 is K4Q-9."
    for effort, thinks in (("low", True), ("none", False)):
        _, body = embedded.post(messages=asked, max_tokens=2000, temperature=0, reasoning_effort=effort)
        message = body["choices"][0]["message"]
        assert message["content"] == right
        assert bool(message.get("reasoning_content")) is thinks
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    with anthropic.Anthropic(base_url=embedded.url, api_key="unused", max_retries=0) as client:
        answered = client.messages.create(
            model=MODEL, max_tokens=2000, messages=asked, thinking=thinking, extra_body={"temperature": 0}
        )
    assert [block.type for block in answered.content] == ["thinking", "text"]
    assert answered.content[1].type == "text"
    assert answered.content[1].text == right


@pytest.fixture(scope="module")
def without_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "model"
    shutil.copytree(EMBEDDED_FOLDER, folder)
    (folder / "chat_template.jinja").write_text(CHATML)
    with serving("--model", str(folder), "--served-model-name", MODEL, trained=True) as served:
        yield served


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_template_without_tools_completes_it_too(without_tools: Served, choice: Any) -> None:
    """The second turn finds all of the first in the prefix cache."""
    first, second = openai_loop(without_tools, "Paris", ("get_weather",), choice)
    assert second.choices[0].finish_reason in ("stop", "tool_calls")
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens - 1
