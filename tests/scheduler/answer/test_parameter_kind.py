"""Whether a parameter is text, JSON or either, by its schema; and that mlx-lm's parsers then read it so."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.answer.notations.parameter_kind import (
    ParameterKind,
    parameter_kind,
    read_mixed,
)
from scheduler.answer.schema_check import StepBudget

_TEXT = {"type": "string"}
DEFINITIONS: dict[str, Any] = {
    "word": _TEXT,
    "choice": {"enum": ["1", "2"]},
    "itself": {"$ref": "#/$defs/itself"},
}
KINDS: list[tuple[Any, ParameterKind]] = [
    (_TEXT, ParameterKind.TEXT),
    ({"enum": ["1", "true"]}, ParameterKind.TEXT),
    ({"const": "x"}, ParameterKind.TEXT),
    ({"$ref": "#/$defs/word"}, ParameterKind.TEXT),
    ({"$ref": "#/$defs/choice"}, ParameterKind.TEXT),
    ({"allOf": [{"minLength": 1}, _TEXT]}, ParameterKind.TEXT),
    ({"anyOf": [_TEXT, {"enum": ["a"]}]}, ParameterKind.TEXT),
    ({"type": "integer"}, ParameterKind.JSON),
    ({"type": ["number", "null"]}, ParameterKind.JSON),
    ({"properties": {}}, ParameterKind.JSON),
    ({"items": _TEXT}, ParameterKind.JSON),
    ({"anyOf": [{"type": "array"}, {"type": "null"}]}, ParameterKind.JSON),
    ({"type": ["string", "null"]}, ParameterKind.MIXED),
    ({"oneOf": [_TEXT, {"type": "object"}]}, ParameterKind.MIXED),
    ({"enum": ["a", 1]}, ParameterKind.MIXED),
    ({}, ParameterKind.MIXED),
    (True, ParameterKind.MIXED),
    ({"$ref": "#/$defs/itself"}, ParameterKind.MIXED),
    ({"type": "strin"}, ParameterKind.MIXED),
]


@pytest.mark.parametrize(("schema", "kind"), KINDS)
def test_the_schema_alone_decides(schema: Any, kind: ParameterKind) -> None:
    """References, enums and combinations, too; what is unknown may be anything."""
    assert parameter_kind(schema, {"$defs": DEFINITIONS}) is kind


def test_looking_at_a_schema_is_bounded() -> None:
    """One that doubles at each step may be anything."""
    doubled = {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(40)}
    assert parameter_kind({"$ref": "#/$defs/0"}, {"$defs": doubled}) is ParameterKind.MIXED


def test_bare_text_is_json_only_where_the_schema_takes_it() -> None:
    """As something else than a string, and within its bounds."""
    either = {"anyOf": [_TEXT, {"type": "integer", "maximum": 9}]}
    read = [read_mixed(text, either, {}, StepBudget()) for text in ("7", "70", "true", '"7"', "{", "seven")]
    assert read == [7, "70", "true", '"7"', "{", "seven"]
