"""Structured output and required tool calls, in every dialect, with the official clients, on a random
model."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.end_to_end.serving import Served

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
BAD: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "strin"}}}
MODEL = "random"
SAY = "Where?"
QUIET: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture
def client(random_weights: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=random_weights.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(random_weights: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=random_weights.url, api_key="unused", max_retries=0) as client:
        yield client


def fits(text: str | None) -> bool:
    assert text is not None
    value = json.loads(text)
    return set(value) == {"city", "days"} and isinstance(value["days"], int)


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    extra = {**QUIET, **fields.pop("extra_body", {})}
    return client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": SAY}],
        max_tokens=2000,
        temperature=1,
        seed=5,
        extra_body=extra,
        **fields,
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
        {"extra_body": {"structured_outputs": {"json": json.dumps(SCHEMA)}}},
    ],
)
def test_chat_answers_fit_the_schema(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    """In OpenAI's form and in vLLM's, a schema or its text; sampled at temperature 1."""
    (choice,) = chat(client, **fields).choices
    assert choice.finish_reason == "stop"
    assert fits(choice.message.content)


def test_vllms_other_ways_of_asking_work(client: openai.OpenAI) -> None:
    """Choices, expressions and grammars, and any JSON object."""
    asked: list[tuple[dict[str, Any], str]] = [
        ({"structured_outputs": {"grammar": 'root ::= "x" "y"'}}, "xy"),
        ({"structured_outputs": {"choice": ["right"]}}, "right"),
        ({"structured_outputs": {"regex": "z{4}"}}, "zzzz"),
        ({"structured_outputs": {"grammar": 'start: "l" "ark"'}}, "lark"),
    ]
    for extra, text in asked:
        assert chat(client, extra_body=extra).choices[0].message.content == text
    (choice,) = chat(client, response_format={"type": "json_object"}).choices
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content or ""), dict)


TOOL: Any = {
    "type": "function",
    "function": {"name": "forecast", "parameters": SCHEMA, "strict": True},
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "forecast"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_that_must_be_called_is_called(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    """A parsed call with arguments that fit, streamed or whole."""
    asked = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "stream": stream}
    answer = chat(client, **asked)
    if not stream:
        (call,) = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        assert call.function.name == "forecast"
        assert fits(call.function.arguments)
        return
    deltas = [chunk.choices[0].delta.tool_calls[0] for chunk in answer if chunk.choices[0].delta.tool_calls]
    assert deltas[0].function.name == "forecast"
    assert fits("".join(delta.function.arguments or "" for delta in deltas))


def test_a_small_model_fills_a_schema_and_stops(embedded: Served) -> None:
    """Greedy, where it would fall into white space."""
    wanted = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    status, body = embedded.post(max_tokens=100, temperature=0, response_format=wanted)
    assert status == 200
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    text = choice["message"]["content"]
    assert fits(text)
    between = re.sub(r'"(\\.|[^"\\])*"', "s", text)
    assert all(re.fullmatch(r" |\n {0,4}", found) for found in re.findall(r"\s+", between)), text


def test_completions_and_responses_are_held_too(client: openai.OpenAI) -> None:
    """Completions by vLLM's fields, responses by `text.format`, which the response repeats."""
    text = client.completions.create(
        model=MODEL,
        prompt="Where?",
        max_tokens=1000,
        temperature=1,
        seed=3,
        extra_body={"structured_outputs": {"json": SCHEMA}},
    )
    assert fits(text.choices[0].text)
    wanted: Any = {"type": "json_schema", "name": "place", "schema": SCHEMA}
    response = client.responses.create(
        model=MODEL,
        input=SAY,
        max_output_tokens=2000,
        temperature=1,
        text={"format": wanted},
        reasoning={"effort": "none"},
    )
    assert fits(response.output_text)
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"
    tool: Any = {"type": "function", "name": "forecast", "parameters": SCHEMA, "strict": True}
    named: Any = {"type": "function", "name": "forecast"}
    called = client.responses.create(
        model=MODEL,
        input=SAY,
        max_output_tokens=2000,
        temperature=1,
        tools=[tool],
        tool_choice=named,
        reasoning={"effort": "none"},
    )
    (item,) = [item for item in called.output if item.type == "function_call"]
    assert item.name == "forecast"
    assert fits(item.arguments)


def test_anthropics_schemas_are_kept(claude: anthropic.Anthropic) -> None:
    """`output_config.format`."""
    message = claude.messages.create(
        model=MODEL,
        max_tokens=2000,
        messages=[{"role": "user", "content": SAY}],
        thinking={"type": "disabled"},
        extra_body={"temperature": 1},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert fits("".join(block.text for block in message.content if block.type == "text"))


def test_a_bad_schema_is_refused_by_its_place(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    """Under each dialect's own field names, down to the keyword."""
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": BAD, "strict": True}}
    flat: Any = {"type": "function", "name": "f", "parameters": BAD, "strict": True}
    wrong: Any = {"type": "json_schema", "name": "x", "schema": BAD}
    named: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": BAD}}
    places: dict[str, Callable[[], Any]] = {
        "response_format.json_schema.schema.properties.city.type": lambda: chat(
            client, response_format=named
        ),
        "tools.0.function.parameters.properties.city.type": lambda: chat(client, tools=[tool]),
        "structured_outputs.json.properties.city.type": lambda: client.completions.create(
            model=MODEL, prompt="x", extra_body={"structured_outputs": {"json": BAD}}
        ),
        "text.format.schema.properties.city.type": lambda: client.responses.create(
            model=MODEL, input="x", text={"format": wrong}
        ),
        "tools.0.parameters.properties.city.type": lambda: client.responses.create(
            model=MODEL, input="x", tools=[flat], tool_choice="required"
        ),
    }
    for place, ask in places.items():
        with pytest.raises(openai.BadRequestError) as refused:
            ask()
        assert refused.value.param == place
    with pytest.raises(anthropic.BadRequestError, match=r"tools\.0\.input_schema\.properties\.city\.type: "):
        claude.messages.create(
            model=MODEL,
            max_tokens=9,
            messages=[{"role": "user", "content": SAY}],
            tools=[{"name": "f", "input_schema": BAD, "strict": True}],
            tool_choice={"type": "any"},
        )


def test_what_a_loose_schema_loses_is_in_a_header(client: openai.OpenAI) -> None:
    """By field and JSON pointer, of a whole answer and of a stream; a strict one is refused instead."""
    unique = {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2, "uniqueItems": True}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "city": unique}}
    form: dict[str, Any] = {"name": "place", "schema": schema}
    for stream in (False, True):
        with client.chat.completions.with_streaming_response.create(
            model=MODEL,
            messages=[{"role": "user", "content": SAY}],
            max_tokens=9,
            stream=stream,
            extra_body={**QUIET, "response_format": {"type": "json_schema", "json_schema": form}},
        ) as response:
            named = response.headers["x-penstock-ignored"]
        assert named == "response_format.json_schema.schema#/properties/city/uniqueItems"
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        chat(client, response_format={"type": "json_schema", "json_schema": {**form, "strict": True}})


def test_a_limit_in_the_middle_of_an_answer_is_a_400_that_names_it(client: openai.OpenAI) -> None:
    """A million letters that the grammar forces; in a stream it is an error event. The next answer comes."""
    doubled = "".join(f"{chr(97 + n)}: {chr(98 + n)} {chr(98 + n)}\n" for n in range(20))
    extra = {"structured_outputs": {"grammar": f'start: "go" a\n{doubled}u: "x"'}}
    with pytest.raises(openai.BadRequestError, match=r"grammar: .*too complex.*limit 5000") as refused:
        chat(client, extra_body=extra)
    assert (refused.value.code, refused.value.param) == ("grammar_limit", "structured_outputs.grammar")
    with pytest.raises(openai.APIError, match="limit 5000"):
        list(chat(client, extra_body=extra, stream=True))
    assert (
        chat(client, extra_body={"structured_outputs": {"choice": ["left"]}}).choices[0].message.content
        == "left"
    )
