"""Calls held to their schema, as JSON and in other dialects: OpenAI's client, on a real model's server.

The embedded model was taught the first of these dialects; in the others it writes what the masks leave it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.end_to_end.serving import Served, serving
from tests.examples import sampled

MODEL = "held"
DIALECTS = ("hermes", "qwen3_coder", "glm47", "pythonic")
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


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    options = ("--tool-parser", request.param, "--hold-calls", "auto", "--served-model-name", MODEL)
    with serving(*options, trained=True) as served:
        yield served


@in_dialects
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_openais_client_gets_a_call_that_fits(served: Served, choice: Any) -> None:
    """Whole and streamed, the same; sampled at temperature 1."""
    asked: Any = {"model": MODEL, "messages": SAY, "tools": [TOOL], "tool_choice": choice}
    asked |= {"temperature": 1, "seed": 3, "max_tokens": 600, "parallel_tool_calls": False}
    with openai.OpenAI(base_url=served.url + "/v1", api_key="unused", max_retries=0) as client:
        (whole,) = client.chat.completions.create(**asked).choices
        chunks = [*client.chat.completions.create(**asked, stream=True)]
    assert whole.finish_reason == "tool_calls"
    (call,) = whole.message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
    assert not whole.message.content
    calls = [call for chunk in chunks for one in chunk.choices for call in one.delta.tool_calls or ()]
    assert "".join(one.function.arguments or "" for one in calls) == call.function.arguments
