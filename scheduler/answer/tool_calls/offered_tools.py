"""The tools of a request, and what reading calls needs to know of their schemas, computed once for all
answers.

Each look at a client's schema can cost milliseconds, so all looks of a request share one budget, and work
that may take too long for the event loop is known beforehand and done in a worker thread.
"""

from __future__ import annotations

import pickle
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
        # As objects schemas take ten times their text, and most requests that wait never read them.
        self._texts = {tool.name: pickle.dumps(tool.parameters) for tool in tools}
        self._schemas: dict[str, Schema] = {}
        self._large: dict[str, bool] = {}

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._texts.values()))

    def __len__(self) -> int:
        return len(self._texts)

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    @cached_property
    def longest_name(self) -> int:
        return max(map(len, self._texts), default=0)

    def schema(self, name: str) -> Schema:
        if name not in self._schemas:
            text = self._texts.get(name)
            self._schemas[name] = {} if text is None else pickle.loads(text)
        return self._schemas[name]

    @cached_property
    def _types(self) -> dict[str, dict[str, frozenset[str]]]:
        left, found = _REQUEST_STEPS, {}
        for name in self._texts:
            budget = StepBudget(min(left, MOST_STEPS))
            steps = budget.left
            found[name] = property_types(self.schema(name), budget)
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
        return not _are_large(self.schema(name) for name in self._texts)

    @property
    def is_read(self) -> bool:
        """Return whether the types of all parameters are known, or can be computed on the event loop."""
        return "_types" in vars(self) or self._are_few

    def read(self) -> None:
        """Compute everything, in at most 50 ms."""
        for name in self._texts:
            self.is_large(name)
        _ = self._types


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
