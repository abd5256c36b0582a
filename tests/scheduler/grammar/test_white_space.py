"""White space between JSON tokens: what a pretty-printer writes there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from scheduler.answer.answer_format import PLAIN
from scheduler.grammar.white_space import MAX_LEVELS, indentation_levels
from scheduler.prompt.preparation import Preparation
from scheduler.request import GenerationRequest, TextPrompt
from scheduler.structure import JsonText
from tests.examples import examples
from tests.fakes.byte_tokenizer import EOS, ByteTokenizer
from tests.fakes.grammar_library import library_of
from tests.fakes.scheduling import FOLDER
from tests.scheduler.engine.mlx.random_schemas import random_schema, shortest

PREPARATION = Preparation(ByteTokenizer(PLAIN), FOLDER)
INTEGER = {"type": "integer"}
TRIP: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": INTEGER}},
    "required": ["city", "days"],
}
BEFORE, LINES = '{\n  "city": "a\\n\\n     b",', '\n  "days": [\n    1\n  ]\n}'


def accepts(schema: Any, text: str) -> bool:
    """Whether an answer that is held to `schema` may be `text`, and may end there."""
    asked = JsonText(schema, "guided_json")
    prepared = PREPARATION.prepare(GenerationRequest("x", TextPrompt("x"), structure=asked))
    vocabulary = library_of(PREPARATION)
    matcher = LLMatcher(vocabulary._tokenizer, prepared.submit.grammar, log_level=0)
    return bool(matcher.validate_tokens([*text.encode(), EOS]) == len(text.encode()) + 1)


@given(st.integers(0, 400), st.sampled_from([None, 1, 2, 3, 4, "\t"]), st.booleans())
@settings(deadline=None, max_examples=examples(150))
def test_whatever_a_pretty_printer_writes_is_allowed(seed: int, indent: Any, compact: bool) -> None:
    """With any indentation, on one line, and with no white space at all."""
    schema = random_schema(seed)
    separators = (",", ":") if compact else None
    text = json.dumps(shortest(schema), ensure_ascii=False, indent=indent, separators=separators)
    assert accepts(schema, text)


@pytest.mark.parametrize("gap", ["  ", "\n" + " " * 9, "\n\t\t\t", " \n", "\n" * 64])
def test_more_than_that_is_not(gap: str) -> None:
    """In a schema of two levels."""
    assert accepts(TRIP, BEFORE + LINES)
    for place in (BEFORE + gap + LINES.lstrip(), "{" + gap + (BEFORE + LINES)[1:].lstrip()):
        assert json.loads(place)
        assert not accepts(TRIP, place)


LEVELS: list[tuple[Any, int]] = [
    ({"const": {"a": [1]}}, 2),
    ({**TRIP, "$defs": {"unused": {"type": "array", "items": TRIP}}}, 2),
    ({"type": "object", "additionalProperties": False}, 0),
    ({"type": "array", "prefixItems": [INTEGER, {"type": "array", "items": INTEGER}]}, 2),
    ({"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"anyOf": [INTEGER, TRIP]}}}, 3),
    ({"properties": {"a": {"$ref": "http://example.com/"}}}, MAX_LEVELS),
    ({"properties": {"a": {"$ref": "#"}}}, MAX_LEVELS),
    ({"properties": {"a": {"type": ["array", "null"]}}}, MAX_LEVELS),
    ({"properties": {"a": False}}, 1),
    ({"anyOf": 5, "properties": [], "items": "x", "type": {}, "$ref": []}, MAX_LEVELS),
    ({"$ref": "#/$defs/0", "$defs": {str(n): {"$ref": f"#/$defs/{n + 1}"} for n in range(5000)}}, MAX_LEVELS),
]


@pytest.mark.parametrize(("schema", "levels"), LEVELS)
def test_the_indentation_is_bounded_by_what_the_schema_declares(schema: Any, levels: int) -> None:
    """Whatever it is, in bounded time: what is open, or wrong, counts as deep."""
    assert indentation_levels(schema) == levels
