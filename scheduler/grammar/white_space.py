"""White space between the JSON tokens of an answer.

Models that are held to a schema tend to write white space without end: where a gap allows much of it, they
write much of it, until `max_tokens`. So a gap holds what a pretty-printer writes there, and no more: one
space, or one newline and its indentation. A regular expression does not know how deep it stands, so the bound
on the indentation is the schema's: the deepest value that it declares. Four blanks a level are the widest
indentation in use.
"""

from __future__ import annotations

from typing import Any

from scheduler.answer.schema_check import listed, target
from scheduler.grammar.plain_schema import DEFINITIONS, parts

MAX_LEVELS = 10
"""Bound on the levels of indentation, also where a schema leaves open what is inside a value, or refers to
itself."""
_BLANKS = 4
_MAX_STEPS = 100
"""Bound on the steps of the search through a schema. Anything deeper counts as open."""
_CONSTRAINING = frozenset(
    ("type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf", "properties", "items", "prefixItems")
)


def json_options(schema: Any) -> dict[str, Any]:
    """Return the library's options (`x-guidance`) for an answer that is held to `schema`."""
    levels = indentation_levels(schema)
    return {"whitespace_pattern": f" |\\n( {{0,{_BLANKS * levels}}}|\\t{{0,{levels}}})"}


def indentation_levels(schema: Any) -> int:
    """Return how deep objects and arrays that fit `schema` are nested, at most MAX_LEVELS. Properties that it
    does not declare count as flat."""
    return min(MAX_LEVELS, _Levels(schema).of(schema, 0))


class _Levels:
    """One walk through one schema, each definition once."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._referred: dict[str, int] = {}

    def of(self, schema: Any, step: int) -> int:
        if schema is False:
            return 0
        if not isinstance(schema, dict) or step > _MAX_STEPS or not _CONSTRAINING & schema.keys():
            return MAX_LEVELS
        step += 1
        inside = [0 if "$ref" not in schema else self._of_reference(schema["$ref"], step), 0]
        inside += map(_nesting, [schema.get("const"), *listed(schema, "enum")])
        members = list[int]()
        for (keyword, *_), part in parts(schema):
            if keyword not in DEFINITIONS:
                found = inside if keyword in ("anyOf", "oneOf", "allOf") else members
                found.append(self.of(part, step))
        return max(*inside, 1 + max(members) if members else _of_type(schema))

    def _of_reference(self, reference: Any, step: int) -> int:
        name = str(reference)
        if name not in self._referred:
            self._referred[name] = MAX_LEVELS  # The value for a reference to itself.
            self._referred[name] = self.of(target(self._root, name), step)
        return self._referred[name]


def _of_type(schema: dict[str, Any]) -> int:
    """Return the levels of what declares no members."""
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    is_free = ("object" in kinds and schema.get("additionalProperties") is not False) or "array" in kinds
    return MAX_LEVELS if is_free else 0


def _nesting(value: Any) -> int:
    """Return how deep the lists and objects of a constant are nested."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_nesting, value.values() if isinstance(value, dict) else value), default=0)
