"""Stream a call's arguments, a JSON object, to the client as JSON text.

A string is streamed while the model writes it (a file's content takes minutes); any other value is streamed
when it is complete and coerced to its schema. The result does not depend on the pieces in which the text
arrives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from scheduler.answer.schema_check import Schema, StepBudget
from scheduler.answer.tool_calls.coercion import coerce, property_schema

_SPACE = " \t\r\n"
_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")
_DEEPEST = 200


def json_text(value: Any) -> str:
    """Return JSON for the client. Raise ValueError for NaN and infinities."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    # JSON can escape a lone surrogate, which UTF-8 cannot encode.
    return text.encode("utf-8", "backslashreplace").decode()


class _At(Enum):
    OBJECT = auto()
    FIRST_KEY = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    STRING = auto()
    """Inside a string that is passed through."""
    COLLECTED = auto()
    """Inside a value that is handled when it is complete."""
    COMMA = auto()
    DONE = auto()


class MalformedArguments(ValueError):
    """The text is no JSON object. `certain`: the argument text of this piece before the fault."""

    def __init__(self, why: object, certain: str) -> None:
        super().__init__(str(why))
        self.certain = certain


class JsonArguments:
    """Parses one JSON object incrementally."""

    def __init__(self, schema: Schema, budget: StepBudget | None = None) -> None:
        """`budget`: the answer's step budget, for coercion."""
        self._schema = schema
        self._budget = budget or StepBudget()
        self._at = _At.OBJECT
        self._key = ""
        self._parts: list[str] = []
        self._depth = 0
        self._quoted = False
        self._escape = ""
        self._members = 0
        self._read = 0
        self.sent = 0
        """How many characters of the text fed so far are covered by the argument text that was returned."""

    @property
    def done(self) -> bool:
        return self._at is _At.DONE

    def may_fit(self, text: str, longest: int) -> bool:
        """Return whether `text` may end a value of more than `longest` characters, which is then coerced."""
        if self._at is _At.COLLECTED:
            return len(self._parts) >= longest and text.count("]") + text.count("}") >= self._depth
        return longest == 0 and (self._at is not _At.STRING or '"' in text)

    def feed(self, text: str) -> tuple[str, str]:
        """Return the argument text that is certain now, and the part of `text` after the end of the object.
        Raise MalformedArguments; feed no more afterwards."""
        out: list[str] = []
        for position, character in enumerate(text):
            if self._at is _At.DONE:
                return "".join(out), text[position:]
            pieces = len(out)
            try:
                self._take(character, out)
            except (ValueError, RecursionError) as error:
                raise MalformedArguments(error, "".join(out)) from error
            self._read += 1
            if len(out) > pieces:
                # The comma that ended a value is written before the next one.
                self.sent = self._read - (character == "," and self._at is _At.FIRST_KEY)
        return "".join(out), ""

    def _take(self, character: str, out: list[str]) -> None:
        match self._at:
            case _At.STRING:
                self._take_string(character, out)
            case _At.COLLECTED:
                self._take_collected(character, out)
            case _At.KEY:
                self._take_key(character)
            case _ if character in _SPACE:
                pass
            case _:
                self._take_mark(character, out)

    def _take_mark(self, character: str, out: list[str]) -> None:
        """Take a character between keys and values."""
        match self._at, character:
            case _At.OBJECT, "{":
                self._at = _At.FIRST_KEY
            case (_At.FIRST_KEY | _At.COMMA, "}"):
                out.append("}" if self._members else "{}")
                self._at = _At.DONE
            case _At.COMMA, ",":
                # As before the first key: models write trailing commas, which JSON does not allow.
                self._at = _At.FIRST_KEY
            case _At.FIRST_KEY, '"':
                self._begin_key()
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, _ if character not in ",:]}":
                self._begin_value(character, out)
            case _:
                raise ValueError(f"{character!r} is out of place in a JSON object")

    def _begin_key(self) -> None:
        self._at, self._parts, self._escape = _At.KEY, ['"'], ""

    def _take_key(self, character: str) -> None:
        self._parts.append(character)
        if self._escape:
            self._escape = ""
        elif character == "\\":
            self._escape = "\\"
        elif character == '"':
            self._key = json.loads("".join(self._parts), strict=False)
            self._at = _At.COLON

    def _begin_value(self, character: str, out: list[str]) -> None:
        schema = property_schema(self._schema, self._key)
        if character == '"' and takes_strings(schema):
            out.append(self._member_head() + '"')
            self._at, self._escape = _At.STRING, ""
            return
        self._at, self._parts, self._depth = _At.COLLECTED, [], 0
        self._quoted, self._escape = False, ""
        self._take_collected(character, out)

    def _member_head(self) -> str:
        self._members += 1
        return ("{" if self._members == 1 else ", ") + json_text(self._key) + ": "

    def _take_string(self, character: str, out: list[str]) -> None:
        if self._escape:
            self._take_escape(character, out)
        elif character == "\\":
            self._escape = "\\"
        elif character == '"':
            out.append('"')
            self._at = _At.COMMA
        else:
            # A bare line break in a string is not JSON, but unambiguous.
            out.append(json.dumps(character)[1:-1] if character < " " else character)

    def _take_escape(self, character: str, out: list[str]) -> None:
        self._escape += character
        wanted = _ESCAPES if len(self._escape) == 2 else _HEX
        if character not in wanted:
            raise ValueError(f"{self._escape!r} is not an escape in a JSON string")
        if self._escape[1] != "u" or len(self._escape) == 6:
            out.append(self._escape)
            self._escape = ""

    def _take_collected(self, character: str, out: list[str]) -> None:
        if self._quoted:
            self._parts.append(character)
            if self._escape:
                self._escape = ""
            elif character == "\\":
                self._escape = "\\"
            elif character == '"':
                self._quoted = False
                self._end_if_whole(out)
        elif self._depth == 0 and character in ",}" + _SPACE and self._parts:
            self._end_value(out)
            self._take(character, out)
        else:
            self._parts.append(character)
            self._quoted = character == '"'
            self._depth += (character in "[{") - (character in "]}")
            if self._depth > _DEEPEST:
                raise ValueError("the arguments are nested too deeply")
            if character in "]}":
                self._end_if_whole(out)

    def _end_if_whole(self, out: list[str]) -> None:
        if self._depth == 0:
            self._end_value(out)

    def _end_value(self, out: list[str]) -> None:
        value: Any = json.loads("".join(self._parts), strict=False)
        schema = property_schema(self._schema, self._key)
        fitted = coerce(value, schema, root=self._schema, budget=self._budget)
        out.append(self._member_head() + json_text(fitted))
        self._at, self._depth = _At.COMMA, 0


def takes_strings(schema: Any) -> bool:
    """Return whether a value that is marked as a string stays one."""
    if not isinstance(schema, Mapping):
        return True
    kinds = schema.get("type")
    if kinds is None:
        branches = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(branches, list) and not schema.keys() & {"allOf", "$ref", "enum", "const"}:
            # One branch takes any string: this is how schemas write an optional text.
            return any(
                isinstance(one, Mapping) and one.keys() <= _OF_ANY_STRING and takes_strings(one)
                for one in branches
            )
        return not any(name in schema for name in ("anyOf", "oneOf", "allOf", "$ref", "enum", "const"))
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


_OF_ANY_STRING = {"type", "title", "description", "default", "examples"}
