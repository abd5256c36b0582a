"""The calls of one answer, whose arguments are sent as JSON text while another notation's text is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha256
from html import unescape
from typing import Any

from scheduler.answer.schema_check import (
    JSON_TYPES,
    SchemaCheck,
    StepBudget,
    StepsExhausted,
    properties_of,
)
from scheduler.answer.text_stream import HEAVY, Heavy, TextStream
from scheduler.answer.tool_calls.coercion import coerce, read_mixed, takes_strings
from scheduler.answer.tool_calls.offered_tools import OfferedTools
from scheduler.events import CallFault, ToolCallArguments, ToolCallStarted

_WRAPPERS = ("arguments", "parameters", "properties", "input")
LONG_TEXT = 512
"""Characters up to which a value is read within a token's time."""


def json_text(value: Any) -> str:
    """Return JSON for the client. Raise ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # JSON can escape a lone surrogate, which UTF-8 cannot encode.
    return text.encode("utf-8", "backslashreplace").decode()


class AnswerCalls:
    """The calls of one answer: their numbers, ids and tools."""

    def __init__(self, offered: OfferedTools, call_id: Callable[[int], str], *, parallel: bool) -> None:
        self.offered = offered
        self._call_id = call_id
        self._parallel = parallel
        self._ids: dict[str, int] = {}
        self.budget = StepBudget()
        """The budget for the coercion of all their arguments."""
        self.started = 0
        self.ended = 0
        """Those that are over, malformed ones among them."""
        self.faults: Counter[CallFault] = Counter()
        """Why the malformed ones cannot be read."""

    @property
    def malformed(self) -> int:
        return self.faults.total()

    @property
    def enough(self) -> bool:
        """Return whether no more calls are allowed: the client asked for one at a time."""
        return self.ended > 0 and not self._parallel

    def start(self, name: str, call_id: str | None, stream: TextStream) -> WrittenCall:
        """Start a call, also of a tool that was not offered: the client reports the error to the model. An
        id that the model repeats would be ambiguous to the client."""
        name.encode()  # JSON can escape a lone surrogate, which UTF-8 cannot encode.
        index, self.started = self.started, self.started + 1
        if not call_id or call_id in self._ids:
            call_id = self._call_id(index)
        self._ids[call_id] = index
        return WrittenCall(ToolCallStarted(index, call_id, name), self, stream)

    def withdraw(self, started: int, faults: Counter[CallFault]) -> None:
        """Go back to where `started` calls had ended, with `faults`: the model only considered the others."""
        self._ids = {call_id: index for call_id, index in self._ids.items() if index < started}
        self.started = self.ended = started
        self.faults = faults


class WrittenCall:
    def __init__(self, started: ToolCallStarted, calls: AnswerCalls, stream: TextStream) -> None:
        self.started = started
        self.schema = calls.offered.schema(started.name)
        self._types = calls.offered.types(started.name)
        self._calls = calls
        self._stream = stream
        self._sent: list[str] = []
        self._keys: set[str] = set()
        self.sent_to = stream.position
        """The position up to which the text has been sent as arguments."""

    @property
    def sent(self) -> str:
        return "".join(self._sent)

    def json_types(self, key: str) -> frozenset[str]:
        return self._types.get(key, JSON_TYPES)

    def lacks(self, key: str) -> bool:
        """Return whether `key` is a parameter of the tool that the model has not written yet."""
        return key in properties_of(self.schema) and key not in self._keys

    def wraps(self, key: str) -> bool:
        """Return whether the value of `key` can be all of the arguments: models make one of them."""
        properties = properties_of(self.schema)
        return bool(properties) and key not in properties and key in _WRAPPERS and not self._sent

    def spelled(self, key: str) -> str:
        """Return the name of a parameter that a model writes as `key`."""
        return plain if self.lacks(plain := unescape(key)) else key

    def property_schema(self, key: str) -> Any:
        """Return the schema of one argument, with references followed; None if they cannot be followed."""
        schema = properties_of(self.schema).get(key, {})
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        try:
            return SchemaCheck(self.schema, self._calls.budget).resolve(schema)
        except StepsExhausted:
            return None

    def takes_string(self, key: str) -> bool:
        """Return whether a value that is marked as a string stays one."""
        return takes_strings(self.property_schema(key))

    def takes(self, key: str, value: Any) -> bool:
        """Return whether an argument's schema certainly allows a value."""
        try:
            return SchemaCheck(self.schema, self._calls.budget).accepts(value, self.property_schema(key))
        except StepsExhausted:
            return False

    def mixed(self, key: str, text: str) -> Any:
        """Return what bare text means for an argument that may be a string or something else."""
        return read_mixed(text, self.property_schema(key), self.schema, self._calls.budget)

    def json(self, text: str) -> ToolCallArguments:
        """Return the next piece of the arguments, which is JSON text already."""
        self._sent.append(text)
        self.sent_to = self._stream.position
        return ToolCallArguments(self.started.index, text)

    def is_heavy(self, length: int) -> bool:
        """Return whether reading a value of `length` characters belongs in a worker thread."""
        return length > LONG_TEXT or self._calls.offered.is_large(self.started.name)

    def member(self, key: str, length: int, read: Callable[[], Any]) -> Iterator[ToolCallArguments | Heavy]:
        """Yield a whole member, its value coerced to its schema. `read` returns the value of a text of
        `length` characters. Raise ValueError for what is no JSON."""
        if self.is_heavy(length):
            yield HEAVY
        fitted = coerce(read(), self.property_schema(key), root=self.schema, budget=self._calls.budget)
        text = json_text(fitted)
        yield self.json(self._head(key) + text)

    def members(self, values: Mapping[str, Any], length: int) -> Iterator[ToolCallArguments | Heavy]:
        """Yield members that are read, of a text of `length` characters."""
        for key in values:
            yield from self.member(key, length, partial(values.__getitem__, key))

    def begin_string(self, key: str) -> ToolCallArguments:
        return self.json(self._head(key) + '"')

    def string(self, text: str) -> ToolCallArguments:
        return self.json(json_text(text)[1:-1])

    def end_string(self) -> ToolCallArguments:
        return self.json('"')

    def end(self) -> ToolCallArguments:
        return self.json("}" if self._sent else "{}")

    def _head(self, key: str) -> str:
        begins = "{" if not self._sent else ", "
        self._keys.add(key)
        return begins + json_text(key) + ": "


_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"


def call_id(place: str, *, short: bool) -> str:
    """Return the id of a call, for models that write none: the same for one `place` (request, choice and
    number), so a recomputed answer has the same ids. `short`: nine letters and digits."""
    digest = sha256(place.encode("utf-8", "backslashreplace")).digest()
    if short:
        return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:9])
    return "call_" + digest[:12].hex()
