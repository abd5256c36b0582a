"""Whether a parameter is written as bare text, as JSON, or as either: by its schema alone.

Notations with tags write a string bare, so `123` is a string where the schema allows only strings, and a
number where it allows only numbers. Where it allows both, JSON that the schema takes as something else than a
string is that; all other text is a string.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from scheduler.answer.schema_check import Schema, SchemaCheck, StepBudget, StepsExhausted

JSON_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
MOST_STEPS = 2000
"""Bound on the steps of looking at one tool's schema: past it, a parameter may be anything."""
_DEEPEST = 16


class ParameterKind(Enum):
    TEXT = auto()
    """Only strings."""
    JSON = auto()
    """No strings."""
    MIXED = auto()


def json_types(schema: Any, root: Schema, budget: StepBudget | None = None) -> frozenset[str]:
    """Return the JSON types that `schema` may allow; local references resolve in `root`."""
    budget = budget or StepBudget(MOST_STEPS)
    try:
        return _types(schema, SchemaCheck(root, budget), budget, _DEEPEST)
    except StepsExhausted:
        return JSON_TYPES


def parameter_kind(schema: Any, root: Schema) -> ParameterKind:
    types = json_types(schema, root)
    if types == {"string"}:
        return ParameterKind.TEXT
    return ParameterKind.MIXED if "string" in types else ParameterKind.JSON


def property_types(parameters: Schema, budget: StepBudget) -> dict[str, frozenset[str]]:
    """Return the `json_types` of each of a tool's parameters. When the budget is exhausted, the rest may be
    anything."""
    properties = parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: json_types(one, parameters, budget) for name, one in properties.items()}


def read_mixed(text: str, schema: Any, root: Schema, budget: StepBudget) -> Any:
    """Return what bare text means for a parameter that may be a string or something else: JSON of another
    type if the schema takes it, else the text itself."""
    try:
        value = json.loads(text)
        if not isinstance(value, str) and SchemaCheck(root, budget).accepts(value, schema):
            return value
    except (ValueError, RecursionError, StepsExhausted):
        pass
    return text


def _types(schema: Any, check: SchemaCheck, budget: StepBudget, depth: int) -> frozenset[str]:
    budget.spend()
    if schema is False:
        return frozenset()
    if depth == 0 or not isinstance(schema, Mapping):
        return JSON_TYPES
    found = JSON_TYPES
    if "$ref" in schema:
        found &= _types(check.resolve(schema), check, budget, depth - 1)
    if declared := check.types(schema):
        found &= _with_integer(declared)
    elif "properties" in schema:
        # The keyword constrains objects only, but its author means that the value is one.
        found &= {"object"}
    elif "items" in schema:
        found &= {"array"}
    if isinstance(choices := schema.get("enum"), list):
        budget.spend(len(choices))
        found &= frozenset().union(*map(_types_of, choices))
    if "const" in schema:
        found &= _types_of(schema["const"])
    for keyword in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(keyword), list) and branches:
            found &= frozenset().union(*(_types(one, check, budget, depth - 1) for one in branches))
    if isinstance(every := schema.get("allOf"), list):
        for one in every:
            found &= _types(one, check, budget, depth - 1)
    return found


def _with_integer(types: tuple[str, ...]) -> frozenset[str]:
    known = frozenset(types)
    if not known <= JSON_TYPES:
        return JSON_TYPES
    return known | {"integer"} if "number" in known else known


def _types_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset(("null",))
        case bool():
            return frozenset(("boolean",))
        case int() | float():
            return frozenset(("number", "integer"))
        case str():
            return frozenset(("string",))
        case list():
            return frozenset(("array",))
        case _:
            return frozenset(("object",))
