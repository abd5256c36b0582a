"""mlx-lm's own parsers, which judge what the notations' readers read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx_lm.tool_parsers

from scheduler.answer.answer_format import tool_syntax
from scheduler.answer.notations.description import Tagged
from scheduler.answer.schema_check import StepBudget, properties_of
from scheduler.answer.tool_calls.coercion import coerce, read_mixed
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.request import Tool

PARSERS = sorted(
    path.stem for path in Path(mlx_lm.tool_parsers.__path__[0]).glob("*.py") if not path.stem.startswith("_")
)


_CONFUSING = {"function_gemma": ("}",), "gemma4": ("\\u0000",)}


def judged(parser: str, text: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
    """The calls that mlx-lm reads in one answer, their arguments coerced to the tools' schemas. Its parsers
    decide by a property's `type` alone, so they see a schema that all read alike: text, or any JSON."""
    module = import_module(f"mlx_lm.tool_parsers.{parser}")
    start, end = module.tool_call_start, module.tool_call_end
    ends = re.escape(end) if end else f"(?={re.escape(start)})"
    notation = tool_syntax(parser)
    types = {tool.name: OfferedTools([tool]).types(tool.name) for tool in tools}
    definitions = [replace(tool, parameters=_view(types[tool.name])).definition() for tool in tools]
    schemas = {tool.name: tool.parameters for tool in tools}
    found = []
    for inside in re.findall(f"{re.escape(start)}(.*?)(?:{ends}|$)", text, re.DOTALL):
        try:
            parsed = module.parse_tool_call(inside, definitions)
        except Exception:  # Some convert by the schema and fail on a value that does not fit.
            parsed = module.parse_tool_call(inside, None)
        for call in parsed if isinstance(parsed, list) else [parsed]:
            name, arguments = call["name"], call["arguments"]
            arguments = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
            schema = schemas.get(name, {})
            if isinstance(notation.arguments, Tagged) and not notation.arguments.json_opening:
                arguments = {key: _bare(value, key, schema, types[name]) for key, value in arguments.items()}
            found.append((name, coerce(arguments, schema)))
    return found


def can_carry(parser: str, calls: Sequence[tuple[str, Any]]) -> bool:
    """Whether mlx-lm's parser can read these calls as they are. Where values are bare texts it strips some,
    takes the word null for null, and needs a parameter; elsewhere it ends calls at marks within strings."""
    notation = tool_syntax(parser)
    form = notation.arguments
    if not isinstance(form, Tagged) or form.json_opening:
        strings = re.findall(r'"(?:\\.|[^"\\])*"', json.dumps(calls, ensure_ascii=False))
        marks = (*notation.control, *_CONFUSING.get(parser, ()))
        return not any(mark in text for text in strings for mark in marks)
    values = [value for _, arguments in calls for value in arguments.values()]
    texts = [value for value in values if isinstance(value, str)]
    whole = parser != "longcat" or all(arguments for _, arguments in calls)
    return whole and all(text == text.strip() and text.lower() != "null" for text in texts)


def _view(types: Mapping[str, frozenset[str]]) -> dict[str, Any]:
    properties = {key: {"type": "string" if "string" in kinds else "object"} for key, kinds in types.items()}
    return {"type": "object", "properties": properties}


def _bare(value: Any, key: str, schema: Any, types: Mapping[str, frozenset[str]]) -> Any:
    if not isinstance(value, str) or types.get(key) == frozenset(("string",)):
        return value
    return read_mixed(value, properties_of(schema).get(key, {}), schema, StepBudget())
