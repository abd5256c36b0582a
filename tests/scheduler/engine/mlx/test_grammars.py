"""Answers of a model with random weights satisfy their grammars: only the mask can cause that."""

from __future__ import annotations

import dataclasses
import json
import re

import jsonschema
import pytest

from scheduler.request import Sampling
from scheduler.structure import JsonText, Pattern
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
