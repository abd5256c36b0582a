"""The tools of a request, and what reading calls needs to know of their schemas, computed once for all
answers, when a tool is first called.

A look at a client's schema can cost milliseconds: what may take too long for the event loop is known
beforehand and done in a worker thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from scheduler.answer.schema_check import (
    TOOL_STEPS,
    Schema,
    SchemaCheck,
    StepBudget,
    StepsExhausted,
    json_types,
    properties_of,
)
from scheduler.request import Tool

_LIGHT_NODES = 400
"""Values of a schema, with its references followed, up to which it is checked in less than a millisecond."""


class OfferedTools:
    """Shared by the choices of a request, and by threads: two that compute the same thing at once get equal
    results."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._types: dict[str, Mapping[str, frozenset[str]]] = {}
        self._large: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    @cached_property
    def longest_name(self) -> int:
        return max(map(len, self._tools), default=0)

    def taking(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the tools that have all of these parameters, and need no other."""
        return [name for name, tool in self._tools.items() if _takes(tool.parameters, arguments)]

    def schema(self, name: str) -> Schema:
        tool = self._tools.get(name)
        return {} if tool is None else tool.parameters

    def types(self, name: str) -> Mapping[str, frozenset[str]]:
        """Return the JSON types that each of a tool's parameters allows."""
        if name not in self._types:
            schema, budget = self.schema(name), StepBudget(TOOL_STEPS)
            known = {key: json_types(one, schema, budget) for key, one in properties_of(schema).items()}
            self._types[name] = known
        return self._types[name]

    def is_large(self, name: str) -> bool:
        """Return whether a look at the tool's schema may take too long for the event loop."""
        if name not in self._large:
            self._large[name] = _is_large(self.schema(name))
        return self._large[name]


def _takes(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    properties, required = properties_of(schema), schema.get("required", [])
    if not isinstance(required, list):
        return False
    needs = all(isinstance(name, str) and name in arguments for name in required)
    return needs and all(name in properties for name in arguments)


def _is_large(root: Schema) -> bool:
    """Return whether it has more than `_LIGHT_NODES` values, with references followed each time they are
    met."""
    nodes, check = 0, SchemaCheck(root, StepBudget())
    waiting: list[Any] = [root]
    while waiting:
        match waiting.pop():
            case Mapping() as members:
                inside: Collection[Any] = members.values()
                if "$ref" in members:
                    nodes += 1
                    try:
                        waiting.append(check.resolve({"$ref": members["$ref"]}))
                    except StepsExhausted:
                        return True
            case list() as inside:
                pass
            case _:
                continue
        nodes += len(inside)
        if nodes > _LIGHT_NODES:
            return True
        waiting.extend(inside)
    return False
