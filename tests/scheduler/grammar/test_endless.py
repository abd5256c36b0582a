"""A reference that leads back to itself without an end is found before an answer, wherever it can be
reached."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler.grammar.endless import endless_reference

TO_A, TO_B = {"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}
ENDLESS: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#"}, "$ref"),
    ({"properties": {"a": TO_A}, "$defs": {"A": TO_B, "B": TO_A}}, "$defs.B.$ref"),
    ({"properties": {"a": {"allOf": [TO_A]}}, "$defs": {"A": {"anyOf": [TO_A]}}}, "$defs.A.anyOf.0.$ref"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "properties.a.$ref"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "items.$ref"),
    ({"type": ["array"], "prefixItems": [True, {"$ref": "#"}], "minItems": 2}, "prefixItems.1.$ref"),
    ({"anyOf": [{"type": "null"}, TO_A], "$defs": {"A": {"oneOf": [TO_A, TO_A]}}}, "$defs.A.oneOf.1.$ref"),
    ({"$anchor": "x", "allOf": [{"$ref": "#x"}]}, "allOf.0.$ref"),
]
FINITE: list[dict[str, Any]] = [
    {},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"type": "array", "items": {"$ref": "#"}},
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"properties": {"a": {"$ref": "#/$defs/none"}}, "required": ["a"]},
    # Nothing reaches it.
    {"type": "object", "$defs": {"A": TO_A}},
    {"const": {"$ref": "#"}},
    {"type": "object", "properties": {"$ref": {"type": "string"}}, "required": ["$ref"]},
]


@pytest.mark.parametrize(("schema", "place"), ENDLESS)
def test_an_endless_reference_is_named(schema: dict[str, Any], place: str) -> None:
    found = endless_reference(json.loads(json.dumps(schema)))
    assert found is not None
    assert ".".join(found) == place


@pytest.mark.parametrize("schema", FINITE)
def test_a_reference_with_an_end_is_none(schema: dict[str, Any]) -> None:
    assert endless_reference(schema) is None


def test_schemas_that_are_one_object_are_no_end() -> None:
    """As they are where a rewritten schema has one part twice."""
    assert all(endless_reference(schema) is not None for schema, _ in ENDLESS)


def test_a_long_chain_of_references_has_an_end() -> None:
    """It is longer than Python's stack."""
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3000)}
    assert endless_reference({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"type": "null"}}}) is None
    assert endless_reference({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"$ref": "#"}}}) is not None
