"""Every server's names of what changes the answer: each is honoured in every dialect, or refused by name."""

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
from api.dialects.openai.thinking import ThinkingFields, budget_field_of
from api.dialects.responses import decode as responses
from api.dialects.responses.schema import CreateResponse
from api.dialects.responses.tools import Offered
from api.dialects.spellings import (
    CONSTRAINT,
    EFFORT,
    MEANINGS,
    REPETITION_PENALTY,
    REPETITION_WINDOW,
    SERVERS,
    THINKING,
    THINKING_BUDGET,
    TOKEN_BOUND,
    Meaning,
    Spelling,
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
        """Nothing is unknown here: outside of `UnknownFields.noting` that would be an error."""
        return self.decode(self.schema.model_validate({**self.body, **fields}))


TURN = [{"role": "user", "content": "hello"}]
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
    lambda body: responses.generation_request(body, [], Offered.of(body.tools)),
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

EXAMPLES: dict[str, list[tuple[Any, Any]]] = {
    "max_tokens": [(7, 7)],
    "max_completion_tokens": [(7, 7)],
    "max_output_tokens": [(7, 7)],
    "max_new_tokens": [(7, 7)],
    "n_predict": [(7, 7)],
    "thinking.type": [("disabled", False), ("enabled", True), ("adaptive", None), ("auto", None)],
    "enable_thinking": [(False, False), (True, True)],
    "think": [(False, False), (True, True), ("low", "low"), ("none", False)],
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
    "thinking_budget_tokens": [(5, 5), (-1, -1)],
    "reasoning_budget_tokens": [(5, 5), (-1, -1)],
    "thinking_budget": [(5, 5)],
    "chat_template_kwargs.thinking_budget": [(5, 5)],
    "custom_params.thinking_budget": [(5, 5), (-1, -1)],
    "response_format": [
        ({"type": "json_object"}, JsonText({"type": "object"}, "response_format")),
        ({"type": "json_object", "schema": SCHEMA}, JsonText(SCHEMA, "response_format.schema")),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
            JsonText(SCHEMA, "response_format.json_schema.schema", exact=False),
        ),
        (
            {"type": "json_schema", "schema": SCHEMA},
            JsonText(SCHEMA, "response_format.schema", exact=False),
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}},
            JsonText(SCHEMA, "response_format.json_schema.schema"),
        ),
        ({"type": "text"}, None),
    ],
    "text.format": [
        ({"type": "json_object"}, JsonText({"type": "object"}, "text.format")),
        ({"type": "json_object", "schema": SCHEMA}, JsonText(SCHEMA, "text.format.schema")),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA},
            JsonText(SCHEMA, "text.format.schema", exact=False),
        ),
        (
            {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
            JsonText(SCHEMA, "text.format.schema"),
        ),
    ],
    "output_config.format": [
        ({"type": "json_schema", "schema": SCHEMA}, JsonText(SCHEMA, "output_config.format.schema"))
    ],
    "output_format": [
        (
            {"type": "json_schema", "schema": SCHEMA, "strict": False},
            JsonText(SCHEMA, "output_format.schema", exact=False),
        ),
        ({"type": "json_schema", "schema": SCHEMA}, JsonText(SCHEMA, "output_format.schema")),
    ],
    "structured_outputs.json": [(SCHEMA, JsonText(SCHEMA, "structured_outputs.json"))],
    "structured_outputs.regex": [("a+", Pattern("a+", "structured_outputs.regex"))],
    "structured_outputs.choice": [(["a"], OneOf(("a",), "structured_outputs.choice"))],
    "structured_outputs.grammar": [(GBNF, Rules(GBNF, "structured_outputs.grammar"))],
    "structured_outputs.json_object": [
        (True, JsonText({"type": "object"}, "structured_outputs.json_object"))
    ],
    "guided_json": [(SCHEMA, JsonText(SCHEMA, "guided_json"))],
    "guided_regex": [("a+", Pattern("a+", "guided_regex"))],
    "guided_choice": [(["a"], OneOf(("a",), "guided_choice"))],
    "guided_grammar": [(GBNF, Rules(GBNF, "guided_grammar"))],
    "json_schema": [
        (SCHEMA, JsonText(SCHEMA, "json_schema")),
        ('{"type": "object"}', JsonText({"type": "object"}, "json_schema")),
        ({"name": "n", "strict": True, "schema": SCHEMA}, JsonText(SCHEMA, "json_schema")),
    ],
    "grammar": [(GBNF, Rules(GBNF, "grammar"))],
    "regex": [("a+", Pattern("a+", "regex"))],
    "ebnf": [(GBNF, Rules(GBNF, "ebnf"))],
    "format": [
        ("json", JsonText({"type": "object"}, "format")),
        (SCHEMA, JsonText(SCHEMA, "format")),
        ("", None),
    ],
    "repetition_penalty": [(1.5, 1.5)],
    "repeat_penalty": [(1.5, 1.5)],
    "repetition_context_size": [(5, 5)],
    "repeat_last_n": [(5, 5)],
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
    """Completions have no thinking, and Anthropic's API no penalties."""
    if meaning in (THINKING, EFFORT, THINKING_BUDGET):
        return issubclass(dialect.schema, ThinkingFields)
    return meaning not in (REPETITION_PENALTY, REPETITION_WINDOW) or dialect is not MESSAGES


CASES = [
    pytest.param(dialect, meaning, spelling, id=f"{dialect.name}-{spelling.path}-{meaning.title[:12]}")
    for dialect in DIALECTS
    for meaning in MEANINGS
    if offers(dialect, meaning)
    for spelling in meaning.spellings
]


def test_each_server_has_a_name_for_each_matter() -> None:
    """The bound, a switch or an effort, and a constraint. Each path has an example."""
    assert {spelling.path for meaning in MEANINGS for spelling in meaning.spellings} == set(EXAMPLES)
    for matter in ((TOKEN_BOUND,), (THINKING, EFFORT), (CONSTRAINT,)):
        named = {one for meaning in matter for spelling in meaning.spellings for one in spelling.servers}
        assert named >= set(SERVERS)


@pytest.mark.parametrize(("dialect", "meaning", "spelling"), CASES)
def test_a_spelling_means_the_same_in_every_dialect(
    dialect: Dialect, meaning: Meaning[Any], spelling: Spelling[Any]
) -> None:
    for value, says in EXAMPLES[spelling.path]:
        request = dialect.request(fields(spelling.path, value))
        reasoning = request.prompt.reasoning if isinstance(request.prompt, ChatPrompt) else None
        if meaning is TOKEN_BOUND:
            assert request.max_tokens == says
        elif meaning is CONSTRAINT:
            assert request.structure == says
        elif meaning is REPETITION_PENALTY:
            assert request.sampling.repetition_penalty == says
        elif meaning is REPETITION_WINDOW:
            assert request.sampling.repetition_context == says
        elif meaning is THINKING_BUDGET:
            assert request.thinking_tokens == says
        else:
            assert reasoning is not None
            effort = says if isinstance(says, str) else None
            assert reasoning.effort == effort
            # Anthropic's effort leaves it to the model whether it thinks.
            implied = True if effort is not None and spelling.path != "output_config.effort" else None
            assert reasoning.enabled == (says if isinstance(says, bool) else implied)


@pytest.mark.parametrize("dialect", [CHAT, COMPLETIONS, RESPONSES], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize("name", [spelling.path for spelling in TOKEN_BOUND.spellings])
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
        spelling.path: [value for value, says in EXAMPLES[spelling.path] if says is not None]
        for spelling in meaning.spellings
    }
    if meaning in (TOKEN_BOUND, THINKING_BUDGET, REPETITION_WINDOW):
        values = {path: [7, 8] for path in values}
    elif meaning is REPETITION_PENALTY:
        values = {path: [1.5, 1.2] for path in values}
    for (one, ours), (other, theirs) in combinations(values.items(), 2):
        if one.partition(".")[0] == other.partition(".")[0]:
            continue
        for mine in ours:
            for their in theirs:
                body = {**fields(one, mine), **fields(other, their)}
                _check(dialect, meaning, body, one, other)


def _check(dialect: Dialect, meaning: Meaning[Any], body: dict[str, Any], one: str, other: str) -> None:
    if meaning is not CONSTRAINT:
        says = [spelling.asked_by(body) for spelling in meaning.spellings if spelling.path in (one, other)]
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
@pytest.mark.parametrize("budgets", [{}, {"thinking_budget": 6}], ids=["one budget", "two that differ"])
def test_thinking_that_is_off_has_no_budget(dialect: Dialect, budgets: dict[str, int]) -> None:
    body = {**dialect.body, "enable_thinking": False, "thinking_token_budget": 5, **budgets}
    read = dialect.schema.model_validate(body)
    assert isinstance(read, ThinkingFields)
    assert budget_field_of(read) == ""
    request = dialect.decode(read)
    assert request.thinking_tokens is None
    assert isinstance(request.prompt, ChatPrompt)
    assert request.prompt.reasoning.enabled is False


@pytest.mark.parametrize("word", ["on", "off", "low"])
def test_a_word_for_reasoning_is_lm_studios(word: str) -> None:
    prompt = CHAT.request({"reasoning": word}).prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.reasoning.enabled is (word != "off")
    assert prompt.reasoning.effort == ("low" if word == "low" else None)
