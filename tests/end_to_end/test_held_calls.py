"""Calls of dialects that are not JSON, held to their schema: official clients, on a real model's server.

The embedded model was never taught these dialects; what it writes is what the masks leave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from anthropic.types import ToolUseBlock

from tests.end_to_end.serving import Served, serving
from tests.examples import sampled

MODEL = "held"
DIALECTS = ("qwen3_coder", "glm47", "pythonic")
in_dialects = pytest.mark.parametrize(
    "served", sampled(DIALECTS, ["qwen3_coder"]), indirect=True, scope="module"
)
"""What the masks leave in each, without a server: `scheduler/grammar/test_call_rules.py`."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "zip": {"type": "string", "enum": ["0150", "75001"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"type": "array", "items": {"enum": ["C", "F"]}, "maxItems": 2},
        "place": {"type": ["string", "null"], "maxLength": 6},
    },
    "required": ["city", "zip", "days", "units"],
    "additionalProperties": False,
}
SAY: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
FUNCTION = {"name": "get_weather", "description": "The weather in a city", "parameters": SCHEMA}
TOOL: Any = {"type": "function", "function": FUNCTION}
CLAUDES_TOOL: Any = {"name": "get_weather", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    options = ("--tool-parser", request.param, "--hold-calls", "auto", "--served-model-name", MODEL)
    with serving(*options, trained=True) as served:
        yield served


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="unused", max_retries=0) as client:
        yield client


@in_dialects
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_openais_client_gets_a_call_that_fits(client: openai.OpenAI, choice: Any) -> None:
    """Whole and streamed, the same; sampled at temperature 1."""
    asked: Any = {"model": MODEL, "messages": SAY, "tools": [TOOL], "tool_choice": choice}
    asked |= {"temperature": 1, "seed": 3, "max_tokens": 600, "parallel_tool_calls": False}
    (whole,) = client.chat.completions.create(**asked).choices
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    assert not whole.message.content
    streamed = ""
    for chunk in client.chat.completions.create(**asked, stream=True):
        for delta in (choice.delta for choice in chunk.choices):
            streamed += "".join(each.function.arguments or "" for each in delta.tool_calls or ())
    assert streamed == call.function.arguments


@in_dialects
@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}]
)
def test_anthropics_client_gets_a_call_that_fits(claude: anthropic.Anthropic, choice: Any) -> None:
    """Whole and streamed; sampled without a seed, which this API lacks. Without thoughts, which may be of any
    length, the schema bounds the answer."""
    asked: Any = {"model": MODEL, "messages": SAY, "tools": [CLAUDES_TOOL], "tool_choice": choice}
    asked |= {"thinking": {"type": "disabled"}, "extra_body": {"temperature": 1}, "max_tokens": 600}
    message = claude.messages.create(**asked)
    assert message.stop_reason == "tool_use"
    with claude.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    for content in (message.content, final.content):
        [call] = content
        assert isinstance(call, ToolUseBlock)
        jsonschema.validate(call.input, SCHEMA)
