"""What changes the answer has the same names in every dialect, and two that differ are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from api.dialects.anthropic import decode as anthropic
from api.dialects.anthropic.schema import MessagesRequest
from api.dialects.completions import decode as completions
from api.dialects.completions.schema import CompletionRequest
from api.dialects.openai import decode as openai
from api.dialects.openai.schema import ChatCompletionRequest
from api.dialects.openai.thinking import ThinkingFields
from api.dialects.responses import decode as responses
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.store import Referred, ResponseStore
from api.dialects.spellings import (
    CONSTRAINT,
    MEANINGS,
    THINKING_BUDGET,
    TOKEN_BOUND,
    Meaning,
    value_at,
)
from scheduler.request import ChatPrompt, GenerationRequest
from scheduler.structure import JsonText, OneOf, Pattern, Rules


@dataclass(frozen=True)
class Dialect:
    name: str
    schema: type[BaseModel]
    body: dict[str, Any]
    decode: Callable[[Any], GenerationRequest]

    def request(self, fields: dict[str, Any]) -> GenerationRequest:
        return self.decode(self.schema.model_validate({**self.body, **fields}))


TURN = [{"role": "user", "content": "hello"}]
NOTHING = Referred(ResponseStore.by_default(), "", ())
CHAT = Dialect(
    "chat", ChatCompletionRequest, {"messages": TURN}, lambda body: openai.generation_request(body)
)
COMPLETIONS = Dialect(
    "completions", CompletionRequest, {"prompt": "a"}, lambda body: completions.generation_requests(body)[0]
)
RESPONSES = Dialect(
    "responses",
    CreateResponse,
    {"input": "hello"},
    lambda body: responses.decoded(body, None, NOTHING).requests[0],
)
MESSAGES = Dialect(
    "messages",
    MessagesRequest,
    {"messages": TURN, "max_tokens": 7},
    lambda body: anthropic.generation_request(body),
)
DIALECTS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
GBNF = 'root ::= "a" | "b"'

LOOSE = {"name": "n", "schema": SCHEMA}
STRICT = {**LOOSE, "strict": True}


def fits(place: str, *, exact: bool = True) -> JsonText:
    return JsonText(SCHEMA, f"{place}.schema", exact=exact)


EXAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "max_tokens": [(7, 7)],
    "max_completion_tokens": [(7, 7)],
    "max_output_tokens": [(7, 7)],
    "thinking.type": [("disabled", False), ("enabled", True), ("adaptive", None), ("auto", None)],
    "enable_thinking": [(False, False), (True, True)],
    "reasoning.enabled": [(False, False), (True, True)],
    "reasoning.effort": [("none", False), ("max", "max"), ("xhigh", "xhigh"), ("", None), ("default", None)],
    "reasoning_effort": [("none", False), ("max", "max"), ("minimal", "minimal"), ("", None)],
    "output_config.effort": [("none", False), ("max", "max"), ("minimal", "minimal")],
    "chat_template_kwargs.enable_thinking": [(False, False), (True, True)],
    "chat_template_kwargs.thinking": [(False, False), (True, True)],
    "chat_template_kwargs.reasoning_effort": [("high", "high")],
    "thinking_token_budget": [(5, 5), (0, 0), (-1, -1)],
    "thinking.budget_tokens": [(5, 5)],
    "reasoning.max_tokens": [(5, 5)],
    "response_format": [
        ({"type": "json_object"}, JsonText({"type": "object"}, "response_format")),
        ({"type": "json_object", "schema": SCHEMA}, fits("response_format")),
        ({"type": "json_schema", "json_schema": LOOSE}, fits("response_format.json_schema", exact=False)),
        ({"type": "json_schema", "schema": SCHEMA}, fits("response_format", exact=False)),
        ({"type": "json_schema", "json_schema": STRICT}, fits("response_format.json_schema")),
        ({"type": "text"}, None),
    ],
    "text.format": [
        ({"type": "json_object"}, JsonText({"type": "object"}, "text.format")),
        ({"type": "json_object", "schema": SCHEMA}, fits("text.format")),
        ({"type": "json_schema", **LOOSE}, fits("text.format", exact=False)),
        ({"type": "json_schema", **STRICT}, fits("text.format")),
    ],
    "output_config.format": [({"type": "json_schema", "schema": SCHEMA}, fits("output_config.format"))],
    "output_format": [
        ({"type": "json_schema", "schema": SCHEMA, "strict": False}, fits("output_format", exact=False)),
        ({"type": "json_schema", "schema": SCHEMA}, fits("output_format")),
    ],
    "structured_outputs.json": [(SCHEMA, JsonText(SCHEMA, "structured_outputs.json"))],
    "structured_outputs.regex": [("a+", Pattern("a+", "structured_outputs.regex"))],
    "structured_outputs.choice": [(["a"], OneOf(("a",), "structured_outputs.choice"))],
    "structured_outputs.grammar": [(GBNF, Rules(GBNF, "structured_outputs.grammar"))],
    "structured_outputs.json_object": [
        (True, JsonText({"type": "object"}, "structured_outputs.json_object"))
    ],
}
"""By path: values of the field, and what they ask for; a text is an effort."""


def fields(path: str, value: Any) -> dict[str, Any]:
    """Return the fields of a body in which `path` has `value`."""
    name, _, inner = path.partition(".")
    if not inner:
        return {name: value}
    beside = {"type": "enabled"} if path == "thinking.budget_tokens" else {}
    return {name: {**beside, **fields(inner, value)}}


def offers(dialect: Dialect, meaning: Meaning[Any]) -> bool:
    """Completions have no thinking."""
    return meaning in (TOKEN_BOUND, CONSTRAINT) or issubclass(dialect.schema, ThinkingFields)


CASES = [
    pytest.param(dialect, meaning, path, id=f"{dialect.name}-{path}-{meaning.title[:12]}")
    for dialect in DIALECTS
    for meaning in MEANINGS
    if offers(dialect, meaning)
    for path in meaning.spellings
]


def test_each_path_has_an_example() -> None:
    assert {path for meaning in MEANINGS for path in meaning.spellings} == set(EXAMPLES)


@pytest.mark.parametrize(("dialect", "meaning", "path"), CASES)
def test_a_spelling_means_the_same_in_every_dialect(
    dialect: Dialect, meaning: Meaning[Any], path: str
) -> None:
    for value, says in EXAMPLES[path]:
        request = dialect.request(fields(path, value))
        reasoning = request.prompt.reasoning if isinstance(request.prompt, ChatPrompt) else None
        if meaning is TOKEN_BOUND:
            assert request.max_tokens == says
        elif meaning is CONSTRAINT:
            assert request.structure == says
        elif meaning is THINKING_BUDGET:
            assert request.thinking_tokens == says
        else:
            assert reasoning is not None
            effort = says if isinstance(says, str) else None
            assert reasoning.effort == effort
            # Anthropic's effort leaves it to the model whether it thinks.
            implied = True if effort is not None and path != "output_config.effort" else None
            assert reasoning.enabled == (says if isinstance(says, bool) else implied)


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", [*TOKEN_BOUND.spellings])
def test_a_negative_bound_is_none(dialect: Dialect, name: str) -> None:
    """llama.cpp's and LM Studio's -1. Without any name completions keep OpenAI's 16."""
    assert dialect.request({name: -1}).max_tokens is None
    assert dialect.request({}).max_tokens == (16 if dialect is COMPLETIONS else None)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("meaning", MEANINGS, ids=lambda meaning: meaning.title)
def test_two_spellings_that_differ_are_refused_with_both_names(
    dialect: Dialect, meaning: Meaning[Any]
) -> None:
    """Two that say the same are one, but for constraints, which are too large to compare."""
    if not offers(dialect, meaning):
        pytest.skip("the dialect has no such fields")
    values: dict[str, list[Any]] = {
        path: [value for value, says in EXAMPLES[path] if says is not None] for path in meaning.spellings
    }
    if meaning in (TOKEN_BOUND, THINKING_BUDGET):
        values = {path: [7, 8] for path in values}
    for (one, ours), (other, theirs) in combinations(values.items(), 2):
        if one.partition(".")[0] == other.partition(".")[0]:
            continue
        for mine in ours:
            for their in theirs:
                body = {**fields(one, mine), **fields(other, their)}
                _check(dialect, meaning, body, one, other)


def _check(dialect: Dialect, meaning: Meaning[Any], body: dict[str, Any], one: str, other: str) -> None:
    if meaning is not CONSTRAINT:
        says = [meaning.spellings[path](value_at(body, path), path) for path in (one, other)]
        if None in says or says[0] == says[1]:
            return
    if meaning is TOKEN_BOUND and dialect is MESSAGES and one != "max_tokens":
        return  # its body always has max_tokens, too
    with pytest.raises(ValidationError) as raised:
        dialect.request(body)
    message = str(raised.value)
    assert one in message
    assert other in message


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES, MESSAGES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "budgets", [{}, {"reasoning": {"max_tokens": 6}}], ids=["one budget", "two that differ"]
)
def test_thinking_that_is_off_has_no_budget(dialect: Dialect, budgets: dict[str, Any]) -> None:
    body = {**dialect.body, "enable_thinking": False, "thinking_token_budget": 5, **budgets}
    read = dialect.schema.model_validate(body)
    assert isinstance(read, ThinkingFields)
    assert THINKING_BUDGET.asked_by(read) is None
    request = dialect.decode(read)
    assert request.thinking_tokens is None
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.reasoning.enabled is False
