"""Coercion of arguments to their schema: one reading or none; and how a parameter is written between tags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from scheduler.answer.schema_check import ANSWER_STEPS, SchemaCheck, StepBudget, json_types
from scheduler.answer.tool_calls.coercion import coerce, read_mixed

INTEGER = {"type": "integer"}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    return SchemaCheck(schema, StepBudget()).accepts(value, schema)


CASES: list[tuple[Any, dict[str, Any], Any]] = [
    # (the model's value, the schema, the tool's value)
    ("3", INTEGER, 3),
    ("3.0", INTEGER, "3.0"),
    ("9" * 5000, INTEGER, "9" * 5000),
    ("3.5", {"type": "number"}, 3.5),
    ("1e999", {"type": "number"}, "1e999"),
    ("[-1e999]", {"type": "array"}, "[-1e999]"),
    ("True", {"type": "boolean"}, True),
    ("null", {"type": "null"}, None),
    (3, {"type": "string"}, "3"),
    ({"a": "é"}, {"type": "string"}, '{"a": "é"}'),
    ("3", {"type": ["integer", "string"]}, "3"),
    ("3", {"type": ["integer", "number"]}, "3"),
    ('["a"]', {"type": "array"}, ["a"]),
    ('{"n": "1"}', {"type": "object", "properties": {"n": INTEGER}}, {"n": 1}),
    ({"n": ["1", 2]}, {"properties": {"n": {"items": INTEGER}}, "required": ["m"]}, {"n": ["1", 2]}),
    (["1", 2], {"type": "array", "items": INTEGER}, [1, 2]),
    ("3", {"anyOf": [INTEGER, {"type": "null"}]}, 3),
    ("3", {"anyOf": [INTEGER, {"type": "boolean"}, {"type": "string"}]}, "3"),
    ({"n": "1"}, {"$defs": {"i": INTEGER}, "properties": {"n": {"$ref": "#/$defs/i"}}}, {"n": 1}),
    ("3", {"$ref": "https://example.com/schema"}, "3"),
    ("3", {"type": "no such type"}, "3"),
]


@pytest.mark.parametrize(("value", "schema", "expected"), CASES)
def test_a_value_gets_its_one_reading(value: Any, schema: dict[str, Any], expected: Any) -> None:
    """Valid values, and those with no or several readings, stay as the model wrote them."""
    if isinstance(value, dict) and "required" in schema:
        expected = {"n": [1, 2]}  # Missing members are the client's responsibility; present ones are coerced.
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
    )
    | st.lists(st.none() | st.booleans() | st.integers(0, 2) | st.text(max_size=1), max_size=3).map(
        lambda some: {"enum": some}
    )
    | st.sampled_from(
        [
            {"const": 1},
            {"const": [1]},
            {"minimum": 0},
            {"maxLength": 2},
            {"minItems": 1},
            {"maxProperties": 1},
        ]
    ),
    lambda inner: (
        st.dictionaries(st.text(max_size=3), inner, max_size=3).map(lambda each: {"properties": each})
        | inner.map(lambda one: {"items": one})
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"anyOf": some})
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"oneOf": some})
        | st.lists(inner, min_size=1, max_size=3).map(lambda some: {"allOf": some})
        | st.lists(inner, min_size=1, max_size=2).map(lambda some: {"prefixItems": some, "items": False})
        | inner.map(lambda one: {"not": one})
        | inner.map(lambda one: {"properties": {"": one}, "additionalProperties": False, "required": [""]})
    ),
    max_leaves=6,
)


@given(value=json_values, schema=schemas)
def test_what_fits_is_never_touched_and_fitting_twice_is_fitting_once(
    value: Any, schema: dict[str, Any]
) -> None:
    """Coercion is idempotent."""
    fitted = coerce(value, schema)
    if fits(value, schema):
        assert fitted == value
    assert coerce(fitted, schema) == fitted


def doubled(keyword: str, depth: int = 25) -> dict[str, Any]:
    """2 KB that name 2^depth nodes."""
    levels: dict[str, Any] = {
        f"l{level}": {keyword: [{"$ref": f"#/$defs/l{level + 1}"}] * 2} for level in range(depth)
    }
    return {"$ref": "#/$defs/l0", "$defs": {**levels, f"l{depth}": {"type": "integer"}}}


CATASTROPHIC = "^(a+)+$"
LONG = "a" * 40 + "!"
EXPENSIVE: dict[str, tuple[Any, dict[str, Any]]] = {
    # name: (the model's value, the schema)
    "doubled-anyOf": ("x", doubled("anyOf")),
    "doubled-allOf": (3, doubled("allOf")),
    "text-read-in-each-branch": ("[" + "1," * 50_000 + "1]", doubled("anyOf") | {"type": "array"}),
    "written-in-each-branch": (
        list(range(20_000)),
        {"$defs": {"s": {"type": "string", "maxLength": 1}}, "anyOf": [{"$ref": "#/$defs/s"}] * 5_000},
    ),
    "chain": (
        "x",
        {"$ref": "#/$defs/a0", "$defs": {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(9999)}},
    ),
    "long-pointer": ("x", {"allOf": [{"$ref": "#" + "/a" * 500_000}] * 5_000}),
    "list-of-a-loop": (
        [[["x"] * 20] * 20] * 20,
        {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "array", "items": {"$ref": "#"}}]},
    ),
    "enum": (["x"] * 100, {"items": {"enum": [{"n": n} for n in range(20_000)]}}),
    "const": ([list(range(5_000))] * 500, {"items": {"const": [*range(4_999), 0]}}),
    "required": ([{}] * 5_000, {"items": {"required": ["n"] * 5_000}}),
    "pattern-properties": (
        {LONG: 1},
        {"patternProperties": {CATASTROPHIC: {"pattern": CATASTROPHIC}}, "additionalProperties": False},
    ),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_no_schema_costs_more_than_the_answers_steps(name: str) -> None:
    """Values that are too expensive to decide stay as the model wrote them. Unbounded, most of these take
    years."""
    value, schema = EXPENSIVE[name]
    budget = StepBudget()
    spent = []
    spend = budget.spend

    def spend_and_count(steps: int = 1) -> None:
        if steps:
            spent.append(steps)
        spend(steps)

    budget.spend = spend_and_count  # type: ignore[method-assign]
    assert coerce(value, schema, budget=budget) == value
    # Each loop of the check spends at least a step a turn, so the calls bound the work.
    assert len(spent) <= ANSWER_STEPS + 1
    assert budget.left < 0 or name in ("chain", "const", "pattern-properties"), "it is too cheap"


@given(value=json_values, schema=schemas)
def test_what_is_valid_is_accepted(value: Any, schema: dict[str, Any]) -> None:
    """The check is one-sided: it never contradicts jsonschema's own verdict on valid values."""
    if Draft202012Validator(schema).is_valid(value):
        assert fits(value, schema)


_TEXT = {"type": "string"}
DEFINITIONS: dict[str, Any] = {
    "choice": {"enum": ["1", "2"]},
    "itself": {"$ref": "#/$defs/itself"},
}
KINDS: list[tuple[Any, str]] = [
    ({"$ref": "#/$defs/choice"}, "text"),
    ({"allOf": [{"minLength": 1}, _TEXT]}, "text"),
    ({"anyOf": [_TEXT, {"enum": ["a"]}]}, "text"),
    ({"type": ["number", "null"]}, "json"),
    ({"properties": {}}, "json"),
    ({"items": _TEXT}, "json"),
    ({"oneOf": [_TEXT, {"type": "object"}]}, "either"),
    ({"enum": ["a", 1]}, "either"),
    ({"$ref": "#/$defs/itself"}, "either"),
    ({"type": "strin"}, "either"),
]


def kind_of(schema: Any, root: dict[str, Any]) -> str:
    """How a parameter is written between tags."""
    types = json_types(schema, root)
    return "text" if types == {"string"} else "either" if "string" in types else "json"


@pytest.mark.parametrize(("schema", "kind"), KINDS)
def test_the_schema_alone_decides(schema: Any, kind: str) -> None:
    """References, enums and combinations, too; what is unknown may be anything."""
    assert kind_of(schema, {"$defs": DEFINITIONS}) == kind


def test_bare_text_is_json_only_where_the_schema_takes_it() -> None:
    """As something else than a string, and within its bounds."""
    either = {"anyOf": [_TEXT, {"type": "integer", "maximum": 9}]}
    read = [read_mixed(text, either, {}, StepBudget()) for text in ("7", "70", "true", '"7"', "{", "seven")]
    assert read == [7, "70", "true", '"7"', "{", "seven"]
