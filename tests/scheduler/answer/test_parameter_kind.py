"""Whether a parameter is text, JSON or either, by its schema; and that mlx-lm's parsers then read it so."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.answer.answer_format import tool_syntax
from scheduler.answer.notations.parameter_kind import (
    ParameterKind,
    json_types,
    parameter_kind,
    parser_view,
    property_types,
    read_bare,
)
from scheduler.answer.schema_check import StepBudget
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.answer.tool_calls.reading import AnswerCalls, read_block
from scheduler.request import Tool

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


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm47", "longcat", "minimax_m2", "minicpm5"])
def test_all_parsers_read_alike_what_they_read_by_the_type_alone(parser: str) -> None:
    """`007` in an enum without a type, a number that may be text, text that looks like Python, a list."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "a": {"enum": ["007", "8"]},
            "b": {"anyOf": [_TEXT, {"type": "integer"}]},
            "c": {"anyOf": [_TEXT, {"type": "null"}]},
            "d": {"$ref": "#/$defs/word"},
            "e": {"anyOf": [_TEXT, {"type": "array"}]},
            "f": {"type": "integer"},
        },
        "$defs": DEFINITIONS,
    }
    values = {"a": "007", "b": "12", "c": "(1, 2)", "d": "1.50", "e": "[1]", "f": "12345678901234567890"}
    raw = {
        "qwen3_coder": ("<function=t>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>"),
        "glm47": ("t", "<arg_key>{}</arg_key><arg_value>{}</arg_value>", ""),
        "longcat": (
            "t",
            "<longcat_arg_key>{}</longcat_arg_key><longcat_arg_value>{}</longcat_arg_value>",
            "",
        ),
        "minimax_m2": ('<invoke name="t">', '<parameter name="{}">{}</parameter>', "</invoke>"),
        "minicpm5": ('"t">', '<param name="{}">{}</param>', ""),
    }
    head, parameter, tail = raw[parser]
    text = head + "".join(parameter.format(*item) for item in values.items()) + tail
    (call,) = read_block(
        text, tool_syntax(parser), AnswerCalls(OfferedTools([Tool("t", "", schema)]), str, parallel=True)
    )
    expected = {"a": "007", "b": 12, "c": "(1, 2)", "d": "1.50", "e": [1], "f": 12345678901234567890}
    assert call.arguments == expected


def test_bare_text_is_json_only_where_the_schema_takes_it() -> None:
    """As something else than a string, and within its bounds."""
    either = {"anyOf": [_TEXT, {"type": "integer", "maximum": 9}]}
    read = [
        read_bare(text, json_types(either, {}), either, {}, StepBudget())
        for text in ("7", "70", "true", '"7"', "{", "seven")
    ]
    assert read == [7, "70", "true", '"7"', "{", "seven"]
    assert read_bare("7", json_types(_TEXT, {}), _TEXT, {}, StepBudget()) == "7"


def test_parsers_see_text_or_any_json() -> None:
    """And no keyword of a schema that is none."""
    view = parser_view(
        property_types({"properties": {"a": {}, "b": {"type": "array"}}, "required": ["a"]}, StepBudget())
    )
    assert view["properties"] == {"a": {"type": "string"}, "b": {"type": "object"}}
    assert parser_view(property_types({"properties": [5]}, StepBudget()))["properties"] == {}
