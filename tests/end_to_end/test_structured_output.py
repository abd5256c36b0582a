"""Structured output and required tool calls, in every dialect, with the official clients, on a random
model."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import ToolUseBlock

from tests.end_to_end.serving import Served

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
BAD: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "strin"}}}
MODEL = "random"
SAY: Any = [{"role": "user", "content": "Where?"}]
QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


def fits(text: str | None) -> bool:
    assert text is not None
    value = json.loads(text)
    return set(value) == {"city", "days"} and isinstance(value["days"], int)


def chat(gpt: openai.OpenAI, **fields: Any) -> Any:
    extra = {**QUIET, **fields.pop("extra_body", {})}
    sampled: Any = {"max_tokens": 2000, "temperature": 1, "seed": 5}
    return gpt.chat.completions.create(model=MODEL, messages=SAY, extra_body=extra, **sampled, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"json": json.dumps(SCHEMA)}}},
    ],
)
def test_chat_answers_fit_the_schema(gpt: openai.OpenAI, fields: dict[str, Any]) -> None:
    """In OpenAI's form and in vLLM's; sampled at temperature 1."""
    (choice,) = chat(gpt, **fields).choices
    assert choice.finish_reason == "stop"
    assert fits(choice.message.content)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"grammar": 'root ::= "x" "y"'}, "xy"),
        ({"choice": ["right"]}, "right"),
        ({"regex": "z{4}"}, "zzzz"),
        ({"grammar": 'start: "l" "ark"'}, "lark"),
    ],
)
def test_vllms_other_ways_of_asking_work(gpt: openai.OpenAI, asked: dict[str, Any], text: str) -> None:
    answer = chat(gpt, extra_body={"structured_outputs": asked})
    assert answer.choices[0].message.content == text


def test_completions_and_responses_are_held_too(gpt: openai.OpenAI) -> None:
    """Completions by vLLM's fields, responses by `text.format`, which the response repeats."""
    text = gpt.completions.create(
        model=MODEL,
        prompt="Where?",
        max_tokens=1000,
        temperature=1,
        seed=3,
        extra_body={"structured_outputs": {"json": SCHEMA}},
    )
    assert fits(text.choices[0].text)
    asked: Any = {"model": MODEL, "input": "Where?", "max_output_tokens": 2000, "temperature": 1}
    asked["reasoning"] = {"effort": "none"}
    wanted: Any = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    response = gpt.responses.create(text={"format": wanted}, **asked)
    assert fits(response.output_text)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"
    tool: Any = {"type": "function", "name": "forecast", "parameters": SCHEMA, "strict": True}
    named: Any = {"type": "function", "name": "forecast"}
    called = gpt.responses.create(tools=[tool], tool_choice=named, **asked)
    (item,) = [item for item in called.output if item.type == "function_call"]
    assert item.name == "forecast"
    assert fits(item.arguments)


def test_anthropics_schemas_are_kept(claude: anthropic.Anthropic) -> None:
    """`output_config.format`, and a tool that must be called, whole and streamed."""
    asked: Any = {"model": MODEL, "max_tokens": 2000, "messages": SAY, "thinking": {"type": "disabled"}}
    asked["extra_body"] = {"temperature": 1}
    wanted: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = claude.messages.create(output_config=wanted, **asked)
    assert fits("".join(block.text for block in message.content if block.type == "text"))
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    asked |= {"tools": [{"name": "forecast", "input_schema": SCHEMA, "strict": True}], "tool_choice": choice}
    with claude.messages.stream(**asked) as stream:
        for answer in (stream.get_final_message(), claude.messages.create(**asked)):
            assert answer.stop_reason == "tool_use"
            (call,) = answer.content
            assert isinstance(call, ToolUseBlock)
            assert fits(json.dumps(call.input))


_NAMED = {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}
_FUNCTION = {"name": "f", "parameters": BAD, "strict": True}
_TOOL = {"name": "f", "input_schema": BAD, "strict": True}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format.json_schema.schema": ("chat/completions", {"messages": SAY, "response_format": _NAMED}),
    "tools.0.function.parameters": (
        "chat/completions",
        {"messages": SAY, "tools": [{"type": "function", "function": _FUNCTION}]},
    ),
    "structured_outputs.json": ("completions", {"prompt": "x", "structured_outputs": {"json": BAD}}),
    "text.format.schema": (
        "responses",
        {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": BAD}}},
    ),
    "tools.0.parameters": (
        "responses",
        {"input": "x", "tools": [{"type": "function", **_FUNCTION}], "tool_choice": "required"},
    ),
    "tools.0.input_schema": (
        "messages",
        {"messages": SAY, "max_tokens": 9, "tools": [_TOOL], "tool_choice": {"type": "any"}},
    ),
}


@pytest.mark.parametrize("place", REFUSED)
def test_a_bad_schema_is_refused_by_its_place(place: str, random_weights: Served) -> None:
    """Under each dialect's own field names, down to the keyword."""
    path, fields = REFUSED[place]
    status, body = random_weights.post(f"/v1/{path}", **fields)
    error = body["error"]
    assert (status, error["type"]) == (400, "invalid_request_error")
    keyword = f"{place}.properties.city.type"
    assert error["param"] == keyword if path != "messages" else error["message"].startswith(f"{keyword}: ")


def test_what_a_loose_schema_loses_is_in_a_header(gpt: openai.OpenAI) -> None:
    """By field and JSON pointer, of a whole answer and of a stream; a strict one is refused instead."""
    unique = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "city": unique}}
    form: dict[str, Any] = {"name": "place", "schema": schema}
    extra = {**QUIET, "response_format": {"type": "json_schema", "json_schema": form}}
    for stream in (False, True):
        with gpt.chat.completions.with_streaming_response.create(
            model=MODEL, messages=SAY, max_tokens=9, stream=stream, extra_body=extra
        ) as response:
            named = response.headers["x-penstock-ignored"]
        assert named == "response_format.json_schema.schema#/properties/city/uniqueItems"
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        chat(gpt, response_format={"type": "json_schema", "json_schema": {**form, "strict": True}})


def test_a_limit_in_the_middle_of_an_answer_is_a_400_that_names_it(gpt: openai.OpenAI) -> None:
    """A million letters that the grammar forces; in a stream it is an error event. The next answer comes."""
    doubled = "".join(f"{chr(97 + n)}: {chr(98 + n)} {chr(98 + n)}\n" for n in range(20))
    extra = {"structured_outputs": {"grammar": f'start: "go" a\n{doubled}u: "x"'}}
    with pytest.raises(openai.BadRequestError, match=r"grammar: .*too complex.*limit 5000") as refused:
        chat(gpt, extra_body=extra)
    assert (refused.value.code, refused.value.param) == ("grammar_limit", "structured_outputs.grammar")
    with pytest.raises(openai.APIError, match="limit 5000"):
        list(chat(gpt, extra_body=extra, stream=True))
    (choice,) = chat(gpt, extra_body={"structured_outputs": {"choice": ["left"]}}).choices
    assert choice.message.content == "left"
