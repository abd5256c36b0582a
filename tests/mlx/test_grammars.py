"""Answers of a model with random weights are what was asked for: only the mask can make that so."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import jsonschema
import msgspec
import pytest
from llguidance.numpy import fill_next_token_bitmask

from scheduler.engine import memory_plan
from scheduler.engine.grammars import Grammars
from scheduler.events import ReasoningDelta, ToolCallArguments, ToolCallStarted
from scheduler.grammar.structure import JsonText, OneOf, Pattern, Rules, Structure
from scheduler.link.messages import Cancel
from scheduler.request import GenerationRequest, Reasoning, Sampling, Tool, ToolChoice
from tests.mlx.grammar_engine import Answer, GrammarEngine, GrammarModel, asked
from tests.mlx.random_schemas import random_schema

PERSON = JsonText(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 5, "maxLength": 40},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 3, "maxItems": 6},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    },
    "response_format",
)
WEATHER = Tool(
    "get_weather",
    parameters={
        "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool("get time", parameters={"type": "object", "properties": {}, "additionalProperties": False})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> GrammarModel:
    return GrammarModel(tmp_path_factory.mktemp("models") / "grammar")


def stopped(answer: Answer) -> bool:
    assert answer.retired is not None
    return answer.retired.reason == "stop"


def test_json_validates_for_two_hundred_random_schemas(model: GrammarModel) -> None:
    """At temperature 1, all in one batch of 32 rows after another. None is cut off, for all are bounded."""
    engine = model.engine()
    schemas = [random_schema(seed) for seed in range(200)]
    answers = engine.run(*(asked(JsonText(schema, "x"), seed) for seed, schema in enumerate(schemas)))
    for schema, answer in zip(schemas, answers, strict=True):
        assert stopped(answer), (schema, answer.retired, engine.text(answer))
        jsonschema.validate(json.loads(engine.text(answer)), schema)
    assert engine.backend.kv_bytes() == 0


SHAPES: list[tuple[Structure, Callable[[str], Any]]] = [
    (Pattern(r"[0-9]{3}-[a-f]+x", "x"), re.compile(r"[0-9]{3}-[a-f]+x").fullmatch),
    (Pattern(r"^(yes|no)/\d\d$", "x"), re.compile(r"(yes|no)/[0-9]{2}").fullmatch),
    (
        OneOf(("left", "right", "two words", 'a"b\\'), "x"),
        ("left", "right", "two words", 'a"b\\').__contains__,
    ),
    (
        Rules('start: "<" item ("," item)~2 ">"\nitem: /[xyz]{2}/', "x"),
        re.compile(r"<[xyz]{2}(,[xyz]{2}){2}>").match,
    ),
    (
        Rules('root ::= "v" num "." num\nnum ::= [1-9] [0-9]?', "x"),
        re.compile(r"v[1-9]\d?\.[1-9]\d?").fullmatch,
    ),
    (JsonText(True, "x"), lambda text: json.loads(text) is not Ellipsis),
]


@pytest.mark.parametrize(("structure", "fits"), SHAPES)
def test_every_way_of_asking_is_kept(
    structure: Structure, fits: Callable[[str], Any], model: GrammarModel
) -> None:
    """Expressions, choices, both kinds of grammar, any JSON; and the answers are not all one."""
    engine = model.engine()
    answers = engine.run(*(asked(structure, seed, 400) for seed in range(6)))
    whole = [engine.text(answer) for answer in answers if stopped(answer)]
    assert len(set(whole)) > 1
    for text in whole:
        assert fits(text), text


def test_where_the_grammar_ends_the_answer_ends(model: GrammarModel) -> None:
    """One token behind the last one that it needs, and that is an end-of-sequence token."""
    engine = model.engine()
    (answer,) = engine.run(asked(OneOf(("left",), "x"), 1))
    assert stopped(answer)
    assert answer.tokens[-1] in answer.prepared.stop_token_ids
    assert engine.text(answer) == "left"


def test_neighbours_are_not_changed(model: GrammarModel) -> None:
    """Sampled rows next to constrained ones say what they say without them, and so do the constrained."""
    plain = [asked(None, seed, 60) for seed in range(8)]
    held = [asked(PERSON, seed, 400) for seed in range(20, 24)]
    without = [answer.tokens for answer in model.engine().run(*plain)]
    alone = [model.engine().run(request)[0].tokens for request in held]
    together = model.engine().run(*plain[:4], *held, *plain[4:])
    assert [answer.tokens for answer in [*together[:4], *together[8:]]] == without
    assert [answer.tokens for answer in together[4:8]] == alone


def test_min_tokens_hold_back_an_end_that_the_grammar_leaves_open(model: GrammarModel) -> None:
    """Rows that may end at any token do not before their number, and do some time behind it. What another
    engine has said counts. Neighbours without a number end as they like."""
    letters = Pattern("[qz]+", "x")
    free = [asked(letters, seed, 400) for seed in range(6)]
    held = [dataclasses.replace(request, min_tokens=40) for request in free]
    answers = model.engine().run(*free, *held)
    assert all(map(stopped, answers))
    assert max(len(answer.tokens) for answer in answers[:6]) < 40
    assert min(len(answer.tokens) for answer in answers[6:]) > 40
    for request, answer in zip(held, answers[6:], strict=True):
        engine = model.engine()
        number, submit = engine.submit(request, answer.tokens[:17])
        engine.turn([submit])
        while not engine.loop.idle:
            engine.turn()
        assert engine.answers[number].tokens == answer.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_a_grammar_is_at_its_end_min_tokens_do_not_count(
    temperature: float, model: GrammarModel
) -> None:
    """Nothing but an end may come then: it comes, and the answer is the grammar's."""
    engine = model.engine()
    requests = [
        dataclasses.replace(
            asked(Pattern("[ab]{5}", "x"), seed),
            min_tokens=100,
            sampling=Sampling(temperature=temperature, seed=seed),
        )
        for seed in range(4)
    ]
    for answer in engine.run(*requests):
        assert stopped(answer)
        assert answer.tokens[-1] in answer.prepared.stop_token_ids
        assert re.fullmatch("[ab]{5}", engine.text(answer))


def test_log_probabilities_of_a_held_answer_are_the_models_own(model: GrammarModel) -> None:
    """Beside rows with and without: one with each token, and the likeliest are what the model would have
    liked to say, not what it may."""
    held = [dataclasses.replace(asked(PERSON, seed, 400), top_logprobs=5) for seed in range(3)]
    free = dataclasses.replace(asked(None, 1, 20), top_logprobs=5)
    answers = model.engine().run(*held, asked(PERSON, 9, 400), free)
    for answer, request in zip(answers, [*held, None, free], strict=True):
        assert len(answer.logprobs) == (len(answer.tokens) if request else 0)
        assert all(entry.chosen <= 0.0 and len(entry.top) == 5 for entry in answer.logprobs)
    # The same prompt, and so the same model's first word, whatever is made of it.
    first, unheld = answers[1].logprobs[0].top, answers[4].logprobs[0].top
    assert [token for token, _ in first] == [token for token, _ in unheld]
    assert [value for _, value in first] == pytest.approx([value for _, value in unheld], abs=1e-4)
    assert answers[1].tokens[0] not in [token for token, _ in first]


def test_an_answer_goes_on_with_another_engine(model: GrammarModel) -> None:
    """From anywhere in its middle, also from its first and its last token: the rest is what it was."""
    request = asked(PERSON, 3, 400)
    whole = model.engine().run(request)[0]
    assert stopped(whole)
    for done in {1, 2, len(whole.tokens) // 2, len(whole.tokens) - 1}:
        engine = model.engine()
        number, submit = engine.submit(request, whole.tokens[:done])
        engine.turn([submit])
        while not engine.loop.idle:
            engine.turn()
        assert engine.answers[number].tokens == whole.tokens, done
        assert engine.answers[number].retired == whole.retired


def test_an_answer_that_gave_way_goes_on(model: GrammarModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constrained rows in too little memory (none of it reserved): preempted, and the same in the end."""
    monkeypatch.setattr(memory_plan, "GROWTH_TOKENS", 0)
    requests = [asked(PERSON, seed, 200) for seed in range(6)]
    free = model.engine().run(*requests)
    engine = model.engine(kv_cache_bytes=250 * 260)
    tight = engine.run(*requests)
    assert engine.preemptions > 0
    assert [answer.tokens for answer in tight] == [answer.tokens for answer in free]


def test_a_constrained_row_is_cancelled_as_any_other(model: GrammarModel) -> None:
    """In its middle and while its grammar is compiled; its neighbour does not notice."""
    engine = model.engine()
    first, one = engine.submit(asked(PERSON, 1, 400))
    second, two = engine.submit(asked(PERSON, 2, 400))
    engine.turn([one, two])
    while len(engine.answers[first].tokens) < 5:
        engine.turn()
    third, three = engine.submit(asked(Pattern("[abc]{4}", "x"), 3, 400))
    engine.turn([Cancel(first), three])
    engine.turn([Cancel(third)])
    while not engine.loop.idle:
        engine.turn()
    reasons = [engine.answers[number].retired for number in (first, third)]
    assert [retired and retired.reason for retired in reasons] == ["cancelled", "cancelled"]
    assert engine.answers[second].tokens == model.engine().run(asked(PERSON, 2, 400))[0].tokens
    assert engine.backend.kv_bytes() == 0


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
        assert model.preparation.prepare(request).grammar
        biased = msgspec.structs.replace(request.sampling, logit_bias=((begin, 10.0),))
        requests.append(GenerationRequest("test", request.prompt, biased, 150))
    answers = engine.run(*requests)
    for answer in answers:
        for _, arguments in calls_of(engine, answer):
            jsonschema.validate(arguments, {"type": "object", **WEATHER.parameters})
    assert sum(len(calls_of(engine, answer)) > 1 for answer in answers) > 2
    assert any(engine.text(answer) for answer in answers)


class _Broken:
    """A matcher that breaks at its third token."""

    def __init__(self, matcher: Any, panics: bool) -> None:
        self._matcher, self._panics, self._left = matcher, panics, 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def consume_token(self, token: int) -> bool:
        self._left -= 1
        if self._left:
            return bool(self._matcher.consume_token(token))
        if self._panics:
            raise BaseException("index out of bounds")
        return bool(self._matcher.consume_token(0))


@pytest.mark.parametrize("panics", [False, True])
def test_where_the_library_fails_one_request_fails(
    panics: bool, model: GrammarModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why and has told of its tokens until then; its neighbours' answers are what they are."""
    engine = model.engine()
    requests = [asked(PERSON, seed, 400) for seed in range(4)]
    healthy = [answer.tokens for answer in model.engine().run(*requests)]
    given = Grammars.constraint

    def constraint(self: Grammars, submit: Any) -> Any:
        made: Any = given(self, submit)
        if submit.request_id == 2 and made is not None:
            made.matcher = _Broken(made.matcher, panics)
        return made

    monkeypatch.setattr(Grammars, "constraint", constraint)

    def fill(matcher: Any, *rest: Any) -> None:
        fill_next_token_bitmask(getattr(matcher, "_matcher", matcher), *rest)

    monkeypatch.setattr("scheduler.engine.constraint.fill_next_token_bitmask", fill)
    answers = engine.run(*requests)
    broken = answers[1]
    assert broken.retired is not None
    assert broken.retired.reason == "failed"
    assert ("index out of bounds" in broken.retired.detail) == panics
    assert broken.tokens == healthy[1][: len(broken.tokens)]
    assert len(broken.tokens) == 3
    assert [answers[row].tokens for row in (0, 2, 3)] == [healthy[row] for row in (0, 2, 3)]
    assert engine.backend.kv_bytes() == 0


def test_an_answer_that_is_not_in_its_grammar_fails_alone(model: GrammarModel) -> None:
    """Said by no engine of ours; were it so, the request would end, and not the engine."""
    engine = model.engine()
    number, submit = engine.submit(
        asked(OneOf(("left",), "x"), 1), model.preparation.tokenizer.encode("right")
    )
    engine.turn([submit])
    while not engine.loop.idle:
        engine.turn()
    retired = engine.answers[number].retired
    assert retired is not None
    assert (retired.reason, "so far" in retired.detail) == ("failed", True)


def test_compiled_grammars_are_kept_and_the_oldest_goes(
    model: GrammarModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's own: as many as it may, and one that went is made again."""
    engine = model.engine()
    tokenizer = engine.backend._grammars._tokenizer
    grammars = Grammars(tokenizer, kept=2)
    submits = [engine.submit(asked(OneOf((word,), "x"), 1))[1] for word in ("a", "b", "c", "a")]
    compiled: list[str] = []
    compile_one = grammars._compile

    def counted(grammar: str) -> Any:
        compiled.append(grammar)
        return compile_one(grammar)

    monkeypatch.setattr(grammars, "_compile", counted)
    for submit in [*submits, submits[0]]:
        while grammars.preparing(submit):
            pass
        assert grammars.constraint(submit) is not None
        grammars.forget(submit.request_id)
    assert compiled == [submits[0].grammar, submits[1].grammar, submits[2].grammar, submits[0].grammar]
    assert grammars.compiled == 2


def test_grammars_that_nobody_waits_for_are_not_compiled(
    model: GrammarModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients leave while one is being made: of theirs only what another waits for is made, and what was not
    is made when it is asked for again."""
    engine = model.engine()
    grammars = Grammars(engine.backend._grammars._tokenizer)
    first, left, shared, other = (
        engine.submit(asked(OneOf((word,), "x"), 1))[1] for word in ("a", "b", "c", "c")
    )
    compiled: list[str] = []
    begun, go_on = threading.Event(), threading.Event()
    compile_one = grammars._compile

    def held(grammar: str) -> Any:
        compiled.append(grammar)
        begun.set()
        assert go_on.wait(20)
        return compile_one(grammar)

    monkeypatch.setattr(grammars, "_compile", held)
    for submit in (first, left, shared, other):
        assert grammars.preparing(submit)
    assert begun.wait(20)
    for submit in (first, left, shared):
        grammars.forget(submit.request_id)
    go_on.set()
    assert grammars.constraint(other) is not None
    assert compiled == [first.grammar, other.grammar]
    assert grammars.constraint(left) is not None
    assert grammars.compiled == 3
