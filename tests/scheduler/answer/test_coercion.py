"""Arguments made to fit their schema: one reading or none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.answer.tool_calls.coercion import coerce, fits

INTEGER = {"type": "integer"}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}

CASES: list[tuple[Any, dict[str, Any], Any]] = [
    # (what the model wrote, the schema, what the tool gets)
    ("3", INTEGER, 3),
    (" -3 ", INTEGER, -3),
    ("3.0", INTEGER, "3.0"),
    ("three", INTEGER, "three"),
    ("9" * 5000, INTEGER, "9" * 5000),
    ("3.5", {"type": "number"}, 3.5),
    ("NaN", {"type": "number"}, "NaN"),
    ("True", {"type": "boolean"}, True),
    ("yes", {"type": "boolean"}, "yes"),
    ("null", {"type": "null"}, None),
    (3, {"type": "string"}, "3"),
    (True, {"type": "string"}, "true"),
    ({"a": "é"}, {"type": "string"}, '{"a": "é"}'),
    ("3", {"type": "string"}, "3"),
    ("3", {"type": ["integer", "string"]}, "3"),
    ("3", {"type": ["integer", "null"]}, 3),
    ("3", {"type": ["integer", "number"]}, "3"),
    ('["a"]', {"type": "array"}, ["a"]),
    ('{"n": "1"}', {"type": "object", "properties": {"n": INTEGER}}, {"n": 1}),
    ({"n": ["1", 2]}, {"properties": {"n": {"items": INTEGER}}, "required": ["m"]}, {"n": ["1", 2]}),
    (["1", 2], {"type": "array", "items": INTEGER}, [1, 2]),
    ("3", {"anyOf": [INTEGER, {"type": "null"}]}, 3),
    ("3", {"anyOf": [INTEGER, {"type": "boolean"}, {"type": "string"}]}, "3"),
    ({"n": "1"}, {"$defs": {"i": INTEGER}, "properties": {"n": {"$ref": "#/$defs/i"}}}, {"n": 1}),
    ("3", {"$ref": "https://example.com/schema"}, "3"),
    ("3", LOOP, "3"),
    ("3", {"type": "no such type"}, "3"),
    ("3", {"type": 7}, "3"),
    ("x", {"type": "string", "pattern": "^y"}, "x"),
]


@pytest.mark.parametrize(("value", "schema", "expected"), CASES)
def test_a_value_gets_its_one_reading(value: Any, schema: dict[str, Any], expected: Any) -> None:
    """What fits, and what has no or several readings, stays as the model wrote it."""
    if isinstance(value, dict) and "required" in schema:
        expected = {"n": [1, 2]}  # What is missing is the client's to say; what is there is read.
    result = coerce(value, schema)
    assert result == expected
    assert type(result) is type(expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
schemas = st.recursive(
    st.sampled_from(["integer", "number", "string", "boolean", "null", "array", "object"]).map(
        lambda kind: {"type": kind}
    ),
    lambda inner: (
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda each: {"properties": each})
        | inner.map(lambda one: {"items": one})
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
    ),
    max_leaves=6,
)


@given(value=json_values, schema=schemas)
def test_what_fits_is_never_touched_and_fitting_twice_is_fitting_once(
    value: Any, schema: dict[str, Any]
) -> None:
    """Coercion is a projection."""
    fitted = coerce(value, schema)
    if fits(value, schema):
        assert fitted == value
    assert coerce(fitted, schema) == fitted
