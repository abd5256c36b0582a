"""The tools of a request, and what reading calls needs to know of their schemas, computed once for all
answers.

Each look at a client's schema can cost milliseconds, so all looks of a request share one budget, and work
that may take too long for the event loop is known beforehand and done in a worker thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from scheduler.answer.notations.parameter_kind import JSON_TYPES, MOST_STEPS, property_types
from scheduler.answer.schema_check import Schema, SchemaCheck, StepBudget
from scheduler.request import Tool

_REQUEST_STEPS = 30_000
"""Bound on the steps for the parameters of all tools of a request: at most about 40 ms of a worker. 64 tools
of agents take 50 to 300 steps each."""
_LIGHT_NODES = 400
"""Values of a schema, with its references followed, up to which it is checked in less than a millisecond."""


class OfferedTools:
    """Shared by the choices of a request, and by threads: two that compute the same thing at once get equal
    results."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._large: dict[str, bool] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._tools

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

    @cached_property
    def _types(self) -> dict[str, dict[str, frozenset[str]]]:
        left, found = _REQUEST_STEPS, {}
        for name, tool in self._tools.items():
            budget = StepBudget(min(left, MOST_STEPS))
            steps = budget.left
            found[name] = property_types(tool.parameters, budget)
            left -= steps - max(0, budget.left)
        return found

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """Return the JSON types that a tool's parameter allows."""
        return self._types.get(name, {}).get(parameter, JSON_TYPES)

    def is_large(self, name: str) -> bool:
        """Return whether fitting a value to the tool's schema may take too long for the event loop."""
        if name not in self._large:
            self._large[name] = _are_large([self.schema(name)])
        return self._large[name]

    @cached_property
    def _are_few(self) -> bool:
        return not _are_large([tool.parameters for tool in self._tools.values()])

    @property
    def is_read(self) -> bool:
        """Return whether the types of all parameters are known, or can be computed on the event loop."""
        return "_types" in vars(self) or self._are_few

    def read(self) -> None:
        """Compute everything, in at most 50 ms."""
        for name in self._tools:
            self.is_large(name)
        _ = self._types


def _takes(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return False
    needs = all(isinstance(name, str) and name in arguments for name in required)
    return needs and all(name in properties for name in arguments)


def _are_large(schemas: Iterable[Schema]) -> bool:
    """Return whether they have more than `_LIGHT_NODES` values, with references followed each time they are
    met."""
    nodes = 0
    for root in schemas:
        check = SchemaCheck(root, StepBudget())
        waiting: list[Any] = [root]
        while waiting:
            match waiting.pop():
                case Mapping() as members:
                    inside: Collection[Any] = members.values()
                    if "$ref" in members:
                        nodes += 1
                        waiting.append(check.resolve({"$ref": members["$ref"]}))
                case list() as inside:
                    pass
                case _:
                    continue
            nodes += len(inside)
            if nodes > _LIGHT_NODES:
                return True
            waiting.extend(inside)
    return False
