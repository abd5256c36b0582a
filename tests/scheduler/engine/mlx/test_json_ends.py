"""A greedy model that is held to a schema fills it and stops."""

from __future__ import annotations

import json
import re
from unittest.mock import patch

import jsonschema

from tests.scheduler.engine.mlx.grammar_engine import GrammarModel, stopped
from tests.scheduler.engine.mlx.json_ends import ends_in_time, greedy_answers
from tests.scheduler.engine.mlx.random_schemas import random_schema

SCHEMAS = [random_schema(seed) for seed in range(24)]


def test_most_answers_end_soon(model: GrammarModel) -> None:
    """Within three times the shortest document that fits: more than where there may be much white space."""
    ended = sum(ends_in_time(model, SCHEMAS))
    with patch("scheduler.grammar.part.json_options", lambda schema: {"whitespace_pattern": "[ \\n]{1,64}"}):
        assert sum(ends_in_time(model, SCHEMAS)) < ended


def test_no_gap_is_longer_than_its_indentation(model: GrammarModel) -> None:
    """The greedy answers are right and whole."""
    answers = greedy_answers(model, SCHEMAS, times=20)
    assert sum(stopped(answer) for answer, _ in answers) > len(SCHEMAS) // 2
    for schema, (answer, text) in zip(SCHEMAS, answers, strict=True):
        if stopped(answer):
            jsonschema.validate(json.loads(text), schema)
        between = re.sub(r'"(\\.|[^"\\])*("|$)', "s", text)
        assert all(re.fullmatch(r" |\n( *|\t*)", gap) for gap in re.findall(r"\s+", between)), text
