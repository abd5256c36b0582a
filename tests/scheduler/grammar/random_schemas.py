"""Random schemas of tools, as agents send them, and harder."""

from __future__ import annotations

import random
from typing import Any

from scheduler.request import Tool

NAMES = ("path", "content", "old_string", "limit", "is_regex", "edits", "mode", "x", "y_2", "file")
_TEXTS = ("1", "01", "true", "null", "a b", "<b>", "é🦊", "x\ny", "None", "[1]", '"q"', "-", "{}", "1.50")


class RandomSchemas:
    def __init__(self, seed: int, *, nests: bool) -> None:
        """`nests`: whether values can be objects and arrays."""
        self._random = random.Random(seed)
        self._nests = nests

    def tools(self) -> tuple[Tool, ...]:
        some = self._random
        count = some.choice((1, 1, 2, 3))
        return tuple(
            Tool(f"tool_{number}", parameters=self._parameters(), strict=True, place=f"tools.{number}")
            for number in range(count)
        )

    def _parameters(self) -> dict[str, Any]:
        some = self._random
        if some.random() < 0.08:
            return some.choice(({}, {"type": "object"}, {"type": "object", "properties": {}}))
        names = some.sample(NAMES, some.randint(1, 5))
        return {
            "type": "object",
            "properties": {name: self._value(2) for name in names},
            "required": [name for name in names if some.random() < 0.6],
            "additionalProperties": some.choice((True, False)),
            "$defs": {"word": {"type": "string", "minLength": 1, "maxLength": 9}, "node": self._node()},
        }

    def _node(self) -> dict[str, Any]:
        node = {"$ref": "#/$defs/node"}
        return {
            "type": "object",
            "properties": {"text": {"type": "string"}, "next": {"anyOf": [{"type": "null"}, node]}},
            "required": ["text"],
            "additionalProperties": False,
        }  # fmt: skip

    def _value(self, depth: int) -> Any:
        some = self._random
        flat = (
            lambda: {"type": "string"},
            lambda: {"type": "string"},
            lambda: {"type": "string", "enum": [*some.sample(_TEXTS, 3), "plain"]},
            lambda: {"enum": [*some.sample(_TEXTS, 2), "plain", some.choice((1, None, True, 2.5))]},
            lambda: {"const": some.choice(("fixed", 7, False))},
            lambda: {"type": "string", "minLength": 2, "maxLength": 12},
            lambda: {"type": "string", "pattern": some.choice((r"^[a-z]{1,5}$", r"\d{2}", r"^(ab|cd)+"))},
            lambda: {"type": "integer"},
            lambda: {"type": "integer", "minimum": -3, "maximum": 120},
            lambda: {"type": "number"},
            lambda: {"type": "number", "minimum": 0, "maximum": 1},
            lambda: {"type": "boolean"},
            lambda: {"type": ["string", "null"]},
            lambda: {"type": ["string", "integer", "null"]},
            lambda: {"anyOf": [{"type": "string"}, {"type": "null"}]},
            lambda: {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            lambda: {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "number"}]},
            lambda: {"$ref": "#/$defs/word"},
            lambda: {"allOf": [{"type": "string"}, {"minLength": 1}]},
            lambda: {"type": "null"},
        )
        nested = (
            lambda: {"type": "array", "items": self._value(depth - 1)},
            lambda: {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            lambda: {
                "type": "object",
                "properties": {name: self._value(depth - 1) for name in some.sample(NAMES, 2)},
                "additionalProperties": False,
            },
            lambda: {"$ref": "#/$defs/node"},
            lambda: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            lambda: {"type": "object"},
        )
        if self._nests and depth > 0 and some.random() < 0.35:
            return some.choice(nested)()
        return some.choice(flat)()
