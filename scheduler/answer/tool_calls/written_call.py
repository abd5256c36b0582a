"""One call whose arguments are sent as JSON text while another notation's text is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.answer.schema_check import Schema, SchemaCheck, StepBudget, StepsExhausted
from scheduler.answer.tool_calls.coercion import coerce, property_schema
from scheduler.answer.tool_calls.json_arguments import json_text
from scheduler.events import ToolCallArguments, ToolCallStarted


class WrittenCall:
    def __init__(
        self,
        started: ToolCallStarted,
        schema: Schema,
        budget: StepBudget,
        json_types: Callable[[str], frozenset[str]],
    ) -> None:
        """`json_types` returns the JSON types that the schema of an argument allows."""
        self.started = started
        self.schema = schema
        self.budget = budget
        self.json_types = json_types
        self._sent: list[str] = []
        self._members = 0
        self.inside_member = False
        """Whether the model is in the middle of an argument: what it has written may be half a path."""
        self.in_string = False
        """Whether the characters of a string are sent as they come."""
        self.done = False
        """Whether its arguments are whole."""
        self.ended = False
        """Whether its end mark came, too."""

    @property
    def sent(self) -> str:
        return "".join(self._sent)

    def property_schema(self, key: str) -> Any:
        """Return the schema of one argument, with references followed; None if they cannot be followed."""
        schema = property_schema(self.schema, key)
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        try:
            return SchemaCheck(self.schema, self.budget).resolve(schema)
        except StepsExhausted:
            return None

    def json(self, text: str) -> ToolCallArguments:
        """Return the next piece of the arguments, which is JSON text already."""
        self._sent.append(text)
        return ToolCallArguments(self.started.index, text)

    def member(self, key: str, value: Any) -> ToolCallArguments:
        """Return a whole member, its value coerced to its schema. Raise ValueError for what is no JSON."""
        fitted = coerce(value, self.property_schema(key), root=self.schema, budget=self.budget)
        return self.json(self._head(key) + json_text(fitted))

    def begin_string(self, key: str) -> ToolCallArguments:
        self.in_string = True
        return self.json(self._head(key) + '"')

    def string(self, text: str) -> ToolCallArguments:
        """Return the next characters of the string that was begun."""
        return self.json(json_text(text)[1:-1])

    def end_string(self) -> ToolCallArguments:
        self.in_string = False
        return self.json('"')

    def end(self) -> ToolCallArguments:
        self.done = True
        return self.json("}" if self._members else "{}")

    def _head(self, key: str) -> str:
        self._members += 1
        return ("{" if self._members == 1 else ", ") + json_text(key) + ": "
