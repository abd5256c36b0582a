"""Coerce a tool call's arguments to the tool's JSON schema, if exactly one reading is possible.

Models write "3" for an integer, or JSON text for an object. Valid values stay unchanged, and so do values
with no or several readings: the client validates the arguments and reports errors to the model. When the step
budget is exhausted, the arguments stay as the model wrote them.

Notations with tags write a string bare, so `123` is a string where the schema allows only strings, and a
number where it allows only numbers. Where it allows both, JSON that the schema takes as something else than a
string is that; all other text is a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import isinf
from typing import Any

from scheduler.answer.schema_check import (
    Schema,
    SchemaCheck,
    StepBudget,
    StepsExhausted,
    is_of,
    properties_of,
)
from scheduler.answer.tool_calls.literals import WORDS

_INTEGER = re.compile(r"-?\d{1,4000}")
_DEEPEST = 32
_OF_ANY_STRING = {"type", "title", "description", "default", "examples"}
_CHARACTERS_PER_STEP = 64
"""Characters of JSON that are parsed or written in the time of one step."""


def coerce(value: Any, schema: Any, *, root: Schema | None = None, budget: StepBudget | None = None) -> Any:
    """Return `value`, or its only reading that is valid under `schema`. Local references resolve in `root`
    (default: `schema` itself)."""
    if root is None:
        root = schema if isinstance(schema, Mapping) else {}
    check = SchemaCheck(root, budget or StepBudget())
    try:
        return value if check.accepts(value, schema) else _fit(check, value, schema, _DEEPEST)
    except (StepsExhausted, RecursionError):
        return value


def read_mixed(text: str, schema: Any, root: Schema, budget: StepBudget) -> Any:
    """Return what bare text means for a parameter that may be a string or something else."""
    try:
        value = json.loads(text)
        if not isinstance(value, str) and SchemaCheck(root, budget).accepts(value, schema):
            return value
    except (ValueError, RecursionError, StepsExhausted):
        pass
    return text


def takes_strings(schema: Any) -> bool:
    """Return whether a value that is marked as a string stays one."""
    if not isinstance(schema, Mapping):
        return True
    kinds = schema.get("type")
    if kinds is not None:
        return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    branches = schema.get("anyOf", schema.get("oneOf"))
    if schema.keys() & {"allOf", "$ref", "enum", "const"} or not isinstance(branches, list):
        return not schema.keys() & {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
    # One branch takes any string: this is how schemas write an optional text.
    return any(
        isinstance(one, Mapping) and one.keys() <= _OF_ANY_STRING and takes_strings(one) for one in branches
    )


def _fit(check: SchemaCheck, value: Any, schema: Any, depth: int) -> Any:
    """Raise StepsExhausted."""
    check.budget.spend()
    schema = check.resolve(schema)
    if schema is None or depth == 0:
        return value
    if isinstance(branches := schema.get("anyOf") or schema.get("oneOf"), list):
        fitted = [(_fit(check, value, one, depth - 1), one) for one in branches]
        found = [one for one, branch in fitted if isinstance(branch, Mapping) and check.accepts(one, branch)]
        # In Python True == 1.
        alike = (type(one) is type(found[0]) and bool(one == found[0]) for one in found)
        return found[0] if found and all(alike) else value
    types = check.types(schema)
    if types and not is_of(value, types):
        readings = [reading for kind in types for reading in _readings(check.budget, value, kind)]
        if len(readings) != 1:
            return value
        value = readings[0]
    if isinstance(value, dict) and (properties := properties_of(schema)):
        check.budget.spend(len(value))
        return {
            name: _fit(check, item, properties[name], depth - 1) if name in properties else item
            for name, item in value.items()
        }
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return [_fit(check, item, items, depth - 1) for item in value]
    return value


def _finite(text: str) -> float:
    """Raise ValueError for a number that is too large for a float, which JSON could not write again."""
    if isinf(number := float(text)):
        raise ValueError(f"{text} is too large")
    return number


def _readings(budget: StepBudget, value: Any, kind: str) -> Iterator[Any]:
    """Yield `value` read as a `kind`, if it can be: at most one reading."""
    if kind == "string" and value is not None and not isinstance(value, str):
        written = json.dumps(value, ensure_ascii=False)
        budget.spend(len(written) // _CHARACTERS_PER_STEP)
        yield written
    if kind == "string" or not isinstance(value, str):
        return
    budget.spend(len(value) // _CHARACTERS_PER_STEP)
    text = value.strip()
    if kind in ("boolean", "null"):
        if text in WORDS and is_of(WORDS[text], (kind,)):
            yield WORDS[text]
    elif kind == "integer" and _INTEGER.fullmatch(text):
        yield int(text)
    elif kind in ("number", "object", "array"):
        try:
            read = json.loads(text, parse_constant=lambda name: name, parse_float=_finite)
        except (ValueError, RecursionError):
            return
        if is_of(read, (kind,)):
            yield read
