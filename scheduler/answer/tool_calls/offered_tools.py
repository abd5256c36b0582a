"""The tools of a request, and what reading calls needs to know of their schemas, computed once for all
answers, when a tool is first called.

A look at a client's schema can cost milliseconds: what may take too long for the event loop is known
beforehand and done in a worker thread.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scheduler.answer.schema_check import TOOL_STEPS, Schema, StepBudget, json_types, properties_of
from scheduler.request import Tool

_LIGHT_BYTES, _LIGHT_BYTES_WITH_REFERENCES = 8_192, 1_024
"""Up to which a schema is checked in about a millisecond: some 400 values, and references may double them."""


class OfferedTools:
    """Shared by the choices of a request, and by threads: two that compute the same thing at once get equal
    results."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        # As objects schemas take ten times their text, and most requests that wait never read them.
        self._texts = {tool.name: pickle.dumps(tool.parameters) for tool in tools}
        self._schemas: dict[str, Schema] = {}
        self._types: dict[str, Mapping[str, frozenset[str]]] = {}

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._texts.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def taking(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the tools that have all of these parameters, and need no other."""
        return [name for name in self if _takes(self.schema(name), arguments)]

    def schema(self, name: str) -> Schema:
        if name not in self._schemas:
            text = self._texts.get(name)
            self._schemas[name] = {} if text is None else pickle.loads(text)
        return self._schemas[name]

    def types(self, name: str) -> Mapping[str, frozenset[str]]:
        """Return the JSON types that each of a tool's parameters allows."""
        if name not in self._types:
            schema, budget = self.schema(name), StepBudget(TOOL_STEPS)
            known = {key: json_types(one, schema, budget) for key, one in properties_of(schema).items()}
            self._types[name] = known
        return self._types[name]

    def is_large(self, name: str) -> bool:
        """Return whether a look at the tool's schema may take too long for the event loop."""
        text = self._texts.get(name, b"")
        return len(text) > (_LIGHT_BYTES_WITH_REFERENCES if b"$ref" in text else _LIGHT_BYTES)


def _takes(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    properties, required = properties_of(schema), schema.get("required", [])
    if not isinstance(required, list):
        return False
    needs = all(isinstance(name, str) and name in arguments for name in required)
    return needs and all(name in properties for name in arguments)
