"""Coerce a tool call's arguments to the tool's JSON schema, if exactly one reading is possible.

Models write "3" for an integer, or JSON text for an object. Valid values stay unchanged, and so do values
with no or several readings: the client validates the arguments and reports errors to the model. When the step
budget is exhausted, the arguments stay as the model wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isinf
from typing import Any

from scheduler.answer.schema_check import Schema, SchemaCheck, StepBudget, StepsExhausted, is_of

_INTEGER = re.compile(r"-?\d{1,4000}")
_WORDS = {"true": True, "True": True, "false": False, "False": False}
_NULLS = ("null", "None")
_DEEPEST = 32
_OF_ANY_STRING = {"type", "title", "description", "default", "examples"}
_CHARACTERS_PER_STEP = 64
"""Characters of JSON that are parsed or written in the time of one step."""


def coerce(value: Any, schema: Any, *, root: Schema | None = None, budget: StepBudget | None = None) -> Any:
    """Return `value`, or its only reading that is valid under `schema`. Local references resolve in `root`
    (default: `schema` itself)."""
    if root is None:
        root = schema if isinstance(schema, Mapping) else {}
    budget = budget or StepBudget()
    check = SchemaCheck(root, budget)
    try:
        if check.accepts(value, schema):
            return value
        return _Coercion(check, budget).fit(value, schema, _DEEPEST)
    except (StepsExhausted, RecursionError):
        return value


class _Coercion:
    def __init__(self, check: SchemaCheck, budget: StepBudget) -> None:
        self._check = check
        self._budget = budget

    def fit(self, value: Any, schema: Any, depth: int) -> Any:
        """Raise StepsExhausted."""
        self._budget.spend()
        schema = self._check.resolve(schema)
        if schema is None or depth == 0:
            return value
        branches = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(branches, list):
            return self._fit_one_of(value, branches, depth)
        types = self._check.types(schema)
        if types and not is_of(value, types):
            readings = [reading for kind in types for reading in self._readings(value, kind)]
            if len(readings) != 1:
                return value
            value = readings[0]
        return self._fit_inside(value, schema, depth)

    def _fit_one_of(self, value: Any, branches: list[Any], depth: int) -> Any:
        candidates: list[Any] = []
        for branch in branches:
            fitted = self.fit(value, branch, depth - 1)
            if isinstance(branch, Mapping) and self._check.accepts(fitted, branch):
                candidates.append(fitted)
        if candidates and all(_are_equal(candidate, candidates[0]) for candidate in candidates):
            return candidates[0]
        return value

    def _fit_inside(self, value: Any, schema: Schema, depth: int) -> Any:
        properties, items = schema.get("properties"), schema.get("items")
        if isinstance(value, dict) and isinstance(properties, Mapping):
            self._budget.spend(len(value))
            return {
                name: self.fit(item, properties[name], depth - 1) if name in properties else item
                for name, item in value.items()
            }
        if isinstance(value, list) and isinstance(items, Mapping):
            return [self.fit(item, items, depth - 1) for item in value]
        return value

    def _readings(self, value: Any, kind: str) -> Iterator[Any]:
        """Yield `value` read as a `kind`, if it can be: at most one reading."""
        if kind == "string":
            if value is not None and not isinstance(value, str):
                text = json.dumps(value, ensure_ascii=False)
                self._budget.spend(len(text) // _CHARACTERS_PER_STEP)
                yield text
        elif isinstance(value, str):
            self._budget.spend(len(value) // _CHARACTERS_PER_STEP)
            yield from _read(value.strip(), kind)


def property_schema(schema: Schema, name: str) -> Any:
    """Return the subschema of one argument; {} if there is none."""
    properties = schema.get("properties")
    return properties.get(name, {}) if isinstance(properties, Mapping) else {}


def takes_strings(schema: Any) -> bool:
    """Return whether a value that is marked as a string stays one."""
    if not isinstance(schema, Mapping):
        return True
    kinds = schema.get("type")
    if kinds is None:
        branches = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(branches, list) and not schema.keys() & {"allOf", "$ref", "enum", "const"}:
            # One branch takes any string: this is how schemas write an optional text.
            return any(
                isinstance(one, Mapping) and one.keys() <= _OF_ANY_STRING and takes_strings(one)
                for one in branches
            )
        return not any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _are_equal(one: Any, other: Any) -> bool:
    # In Python True == 1.
    return one is other or (type(one) is type(other) and bool(one == other))


def _finite(text: str) -> float:
    """Raise ValueError for a number that is too large for a float, which JSON could not write again."""
    if isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


def _read(text: str, kind: str) -> Iterator[Any]:
    if kind == "integer" and _INTEGER.fullmatch(text):
        yield int(text)
    elif kind == "boolean" and text in _WORDS:
        yield _WORDS[text]
    elif kind == "null" and text in _NULLS:
        yield None
    elif kind in ("number", "object", "array"):
        try:
            read = json.loads(text, parse_constant=lambda name: name, parse_float=_finite)
        except (ValueError, RecursionError):
            return
        if is_of(read, (kind,)):
            yield read
