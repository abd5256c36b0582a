"""Answers of a model with random weights satisfy their grammars: only the mask can cause that."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from scheduler.engine import memory
from scheduler.request import Sampling
from scheduler.structure import JsonText, OneOf, Pattern, Rules, Structure
from tests.contracts.journal import kv_bytes
from tests.scheduler.engine.mlx.grammar_engine import PERSON, GrammarModel, asked, stopped
from tests.scheduler.engine.mlx.random_schemas import random_schema


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.long)])
def test_json_validates_for_random_schemas(model: GrammarModel, count: int) -> None:
    """At temperature 1, all in one batch of 32 rows after another. None is cut off, for all are bounded."""
    engine = model.engine()
    schemas = [random_schema(seed) for seed in range(count)]
    answers = engine.run(*(asked(JsonText(schema, "x"), seed) for seed, schema in enumerate(schemas)))
    for schema, answer in zip(schemas, answers, strict=True):
        assert stopped(answer), (schema, answer.retired, engine.text(answer))
        jsonschema.validate(json.loads(engine.text(answer)), schema)
    assert kv_bytes(engine.backend) == 0


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
    answers = engine.run(*(asked(structure, seed, 200) for seed in range(6)))
    whole = [engine.text(answer) for answer in answers if stopped(answer)]
    assert len(set(whole)) > 1
    for text in whole:
        assert fits(text), text


def test_neighbours_are_not_changed(model: GrammarModel) -> None:
    """Sampled rows next to constrained ones say what they say without them, and so do the constrained."""
    plain = [asked(None, seed, 40) for seed in range(4)]
    held = [asked(PERSON, seed, 400) for seed in range(20, 22)]
    without = [answer.tokens for answer in model.engine().run(*plain)]
    alone = [model.engine().run(request)[0].tokens for request in held]
    together = model.engine().run(*plain[:2], *held, *plain[2:])
    assert [answer.tokens for answer in [*together[:2], *together[4:]]] == without
    assert [answer.tokens for answer in together[2:4]] == alone


def test_min_tokens_hold_back_an_end_that_the_grammar_leaves_open(model: GrammarModel) -> None:
    """Rows that may end at any token do not before their number, and do some time behind it. Another
    engine's tokens count. Neighbours without a number end as they like."""
    letters = Pattern("[qz]+", "x")
    free = [asked(letters, seed, 400) for seed in range(6)]
    held = [dataclasses.replace(request, min_tokens=40) for request in free]
    answers = model.engine().run(*free, *held)
    assert all(map(stopped, answers))
    assert max(len(answer.tokens) for answer in answers[:6]) < 40
    assert min(len(answer.tokens) for answer in answers[6:]) > 40
    engine = model.engine()
    resumed = engine.resume(
        (request, answer.tokens[:17]) for request, answer in zip(held, answers[6:], strict=True)
    )
    assert [one.tokens for one in resumed] == [answer.tokens for answer in answers[6:]]


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
        assert answer.tokens[-1] in answer.prepared.submit.stop_token_ids
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
    places = sorted({1, 2, len(whole.tokens) // 2, len(whole.tokens) - 1})
    resumed = model.engine().resume((request, whole.tokens[:done]) for done in places)
    for done, answer in zip(places, resumed, strict=True):
        assert answer.tokens == whole.tokens, done
        assert stopped(answer), done


def test_a_preempted_answer_goes_on(model: GrammarModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constrained rows in too little memory (none of it reserved): preempted, and the same in the end."""
    monkeypatch.setattr(memory, "GROWTH_TOKENS", 0)
    requests = [asked(PERSON, seed, 200) for seed in range(6)]
    free = model.engine().run(*requests)
    engine = model.engine(kv_cache_bytes=250 * 260)
    tight = engine.run(*requests)
    assert engine.preemptions > 0
    assert [answer.tokens for answer in tight] == [answer.tokens for answer in free]
