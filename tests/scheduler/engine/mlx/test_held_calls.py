"""Tool calls and reasoning of a model with random weights: the mask makes the calls valid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import msgspec

from scheduler.events import ReasoningDelta, ToolCallArguments, ToolCallStarted
from scheduler.request import GenerationRequest, Reasoning, Tool, ToolChoice
from scheduler.structure import OneOf
from tests.scheduler.engine.mlx.grammar_engine import Answer, GrammarEngine, GrammarModel, asked, stopped

WEATHER = Tool(
    "get_weather",
    parameters={
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool("get time", parameters={"type": "object", "properties": {}, "additionalProperties": False})


def calls_of(engine: GrammarEngine, answer: Answer) -> list[tuple[str, Any]]:
    """The whole calls: the last one of an answer that was cut off may be half a call."""
    pieces = engine.pieces(answer)
    names = {piece.index: piece.name for piece in pieces if isinstance(piece, ToolCallStarted)}
    texts = dict.fromkeys(names, "")
    for piece in pieces:
        if isinstance(piece, ToolCallArguments):
            texts[piece.index] += piece.text
    whole = len(names) if stopped(answer) else len(names) - 1
    return [(name, json.loads(texts[index])) for index, name in names.items() if index < whole]


def must_call(seed: int, **fields: Any) -> GenerationRequest:
    return asked(None, seed, 1200, tools=(WEATHER, TIME), tool_choice=ToolChoice.REQUIRED, **fields)


def test_a_tool_that_must_be_called_is_called(model: GrammarModel) -> None:
    """In the model's own syntax: read as a call, of a tool that was offered, with arguments that fit."""
    engine = model.engine()
    answers = [answer for answer in engine.run(*map(must_call, range(12))) if stopped(answer)]
    assert len(answers) > 6
    called = [calls_of(engine, answer) for answer in answers]
    assert all(called)
    assert len({name for calls in called for name, _ in calls}) == 2
    schemas = {tool.name: {"type": "object", **tool.parameters} for tool in (WEATHER, TIME)}
    for name, arguments in (call for calls in called for call in calls):
        jsonschema.validate(arguments, schemas[name])
    assert not any(engine.text(answer) for answer in answers)


def test_a_named_tool_is_called_once(model: GrammarModel) -> None:
    """And no other. Where calls are to come one at a time, there is one as well."""
    engine = model.engine()
    named = [must_call(seed, only_tool="get_weather") for seed in range(6)]
    single = [must_call(seed, parallel_tool_calls=False) for seed in range(6)]
    answers = engine.run(*named, *single)
    assert all(map(stopped, answers))
    called = [calls_of(engine, answer) for answer in answers]
    assert {len(calls) for calls in called} == {1}
    assert {calls[0][0] for calls in called[:6]} == {"get_weather"}


def test_reasoning_is_free_and_what_follows_is_not(model: GrammarModel) -> None:
    """The prompt has opened it: words without a rule, and behind their end nothing but the answer. (A random
    model does not end its reasoning by itself in any time, so a bias makes it.)"""
    engine = model.engine()
    (end,) = model.preparation.tokenizer.encode("</think>")
    (begin,) = model.preparation.tokenizer.encode("<think>")
    requests = []
    for seed in range(6):
        request = asked(OneOf(("left", "right"), "x"), seed, 400, reasoning=Reasoning(enabled=True))
        biased = msgspec.structs.replace(request.sampling, logit_bias=((end, 9.5), (begin, 20.0)))
        requests.append(GenerationRequest("test", request.prompt, biased, 400, structure=request.structure))
    answers = engine.run(*requests)
    assert all(map(stopped, answers))
    thought = ["".join(p.text for p in engine.pieces(a) if isinstance(p, ReasoningDelta)) for a in answers]
    assert sum(len(text) > 20 for text in thought) > 2
    assert {engine.text(answer) for answer in answers} == {"left", "right"}


def test_a_strict_tool_is_held_to_its_schema_where_the_model_may_choose(model: GrammarModel) -> None:
    """Words as it likes; a bias makes it begin calls, and each call of the strict tool fits."""
    engine = model.engine()
    (begin,) = model.preparation.tokenizer.encode("<tool_call>")
    strict = Tool("get_weather", parameters=WEATHER.parameters, strict=True)
    requests = []
    for seed in range(6):
        request = asked(None, seed, 400, tools=(strict,))
        assert model.preparation.prepare(request).submit.grammar
        biased = msgspec.structs.replace(request.sampling, logit_bias=((begin, 10.0),))
        requests.append(GenerationRequest("test", request.prompt, biased, 150))
    answers = engine.run(*requests)
    for answer in answers:
        for _, arguments in calls_of(engine, answer):
            jsonschema.validate(arguments, {"type": "object", **WEATHER.parameters})
    assert sum(len(calls_of(engine, answer)) > 1 for answer in answers) > 2
    assert any(engine.text(answer) for answer in answers)
