"""Calls whose parameters stand between tags: Qwen3-Coder's, GLM's, MiniMax's, DeepSeek's, Kimi K3's.

A text keeps every character between its tags but the line breaks that the template writes around it. mlx-lm's
parsers of some notations trim more, which would change an indented line of code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from json import loads
from typing import Any

from scheduler.answer.notations.description import BREAK, NAME, NUMBER, TOOL, TYPE, Notation, Tagged
from scheduler.answer.notations.parameter_kind import read_mixed
from scheduler.answer.tool_calls.block_text import BlockText, Pieces
from scheduler.answer.tool_calls.json_arguments import json_text, takes_strings
from scheduler.answer.tool_calls.text_stream import NotAsWritten, TextEnded, Waiting
from scheduler.answer.tool_calls.written_call import WrittenCall

_TEXT = {"string"}
"""The JSON types of what is always text."""
_LONGEST_SPACE = 64
_BEGINNINGS = {
    "string": "",
    "null": "nN",
    "boolean": "tfTF",
    "number": "-0123456789NI",
    "integer": "-0123456789",
    "array": "[",
    "object": "{",
}
"""How values of each type begin where they are not a bare text, also in Python's spelling."""
_NAME = re.compile(r"[^\s<>]+")


class TaggedCalls:
    def __init__(self, block: BlockText, notation: Notation, tagged: Tagged) -> None:
        self._block = block
        self._stream = block.stream
        self._head = (notation.opening + notation.head).removeprefix(block.syntax.start)
        self._tail = notation.tail.removesuffix(block.syntax.end)
        self._tagged = tagged
        self._opening = tagged.opening.rstrip()
        self._key_start, self._after_key = self._opening.split(NAME)
        self._lead = tagged.opening[len(self._opening) :]
        """White space before a value, which is not part of it."""
        self._closing = tagged.closing.strip()
        trail = tagged.closing[: len(tagged.closing) - len(tagged.closing.lstrip())]
        self._ends = (trail + self._closing, self._closing) if trail else (self._closing,)

    def pieces(self) -> Pieces:
        """Yield all calls of the block."""
        while not (yield from self._stream.ends()):
            self._block.begun_at = self._stream.position
            if self._block.calls.enough:
                yield from self._block.skip()
                return
            name = yield from self._name()
            call = self._block.begin(name)
            yield call.started
            yield from self._parameters(call)
            yield call.end()
            self._block.ended()

    def _name(self) -> Waiting[str]:
        before, after = self._head.strip().split(TOOL)
        yield from self._stream.one_of([before])
        if not after:
            name = yield from self._name_alone()
        elif NUMBER in after:
            middle, after = after.split(NUMBER)
            name, _ = yield from self._stream.name([middle])
            yield from self._stream.name([after])
        else:
            name, _ = yield from self._stream.name([after])
        if _NAME.fullmatch(name := name.strip()) is None:
            raise NotAsWritten("it names no tool")
        return name

    def _name_alone(self) -> Waiting[str]:
        """Return a name that the first parameter's tag ends, or the end of the block."""
        try:
            name, _ = yield from self._stream.name([self._key_start])
        except TextEnded as end:
            if self._tagged.without_parameters is not None:
                raise
            return end.text
        self._stream.put_back(self._key_start)
        return name

    def _parameters(self, call: WrittenCall) -> Pieces:
        tail = self._tail.strip()
        while True:
            yield from self._stream.space()
            if not tail and (yield from self._stream.peek()) == "":
                return
            if (yield from self._stream.one_of([self._key_start, *([tail] if tail else ())])) == tail:
                return
            yield from self._parameter(call)

    def _parameter(self, call: WrittenCall) -> Pieces:
        call.inside_member = True
        key, is_text, opening = yield from self._key()
        if self._tagged.quoted is not None:
            yield from self._quoted(call, key, opening, *self._tagged.quoted)
        elif (yield from self._is_text(call, key, is_text)):
            yield from self._stream.optional(self._lead)
            yield call.begin_string(key)
            yield from self._block.text_until(call, self._ends)
            yield call.end_string()
        else:
            yield from self._whole(call, key, opening, is_text)
        call.inside_member = False

    def _quoted(self, call: WrittenCall, key: str, opening: str, start: str, end: str) -> Pieces:
        """Yield a value in a notation that puts marks around a text with line breaks. Only marked text is
        streamed, because only such text is long."""
        yield from self._stream.space()
        types = call.json_types(key)
        is_quoted = yield from self._stream.optional(start)
        if not is_quoted or "string" not in types or (yield from self._begins_json(types)):
            yield from self._whole(call, key, opening, None, before=start if is_quoted else "")
            return
        yield call.begin_string(key)
        yield from self._block.text_until(call, [end])
        yield call.end_string()
        yield from self._stream.space()
        yield from self._stream.one_of([self._closing])

    def _is_text(self, call: WrittenCall, key: str, is_text: bool | None) -> Waiting[bool]:
        """Return whether the value is certainly text that stays as it is: by its tag, schema or beginning."""
        schema = call.property_schema(key)
        if is_text is not None:
            return is_text and takes_strings(schema)
        types = call.json_types(key)
        if types == _TEXT:
            return _choices(schema) is None
        return "string" in types and not (yield from self._begins_json(types))

    def _begins_json(self, types: frozenset[str]) -> Waiting[bool]:
        """Return whether the value may turn out to be one of the other types."""
        if types == _TEXT:
            return False
        for length in range(len(self._lead) + 1, _LONGEST_SPACE):
            start = (yield from self._stream.peek(length))[:length]
            if (first := start.strip()) or len(start) < length:
                return any(first[:1] in _BEGINNINGS[kind] for kind in types)
        return True

    def _whole(
        self, call: WrittenCall, key: str, opening: str, is_text: bool | None, before: str = ""
    ) -> Pieces:
        """Yield a value that is sent whole. `before`: what was already read of it."""
        text, _ = yield from self._stream.until(self._ends)
        own = before + text.removeprefix(self._lead)
        schema = call.property_schema(key)
        types = call.json_types(key)
        if is_text is not None or "string" not in types:
            value = self._by_the_parser(call.started.name, key, opening, own)
        elif types == _TEXT:
            plain = self._unquoted(own)
            value = plain if plain in (_choices(schema) or ()) else plain.strip()
        else:
            value = read_mixed(self._unquoted(own), schema, call.schema, call.budget)
        yield call.member(key, value)
        self._block.sent()

    def _unquoted(self, text: str) -> str:
        if self._tagged.quoted is None:
            return text
        start, end = self._tagged.quoted
        text = text.strip()
        return text[len(start) : -len(end)] if text.startswith(start) and text.endswith(end) else text

    def _key(self) -> Waiting[tuple[str, bool | None, str]]:
        """Return the name of the parameter, whether its value is text (or None if its schema decides that),
        and the opening tag up to the value."""
        tagged = self._tagged
        if not tagged.is_flagged:
            first, *others = self._after_key.split(BREAK)
            key, _ = yield from self._stream.name([first])
            for tag in others:
                yield from self._stream.space()
                yield from self._stream.one_of([tag])
            return key.strip(), None, tagged.opening.replace(NAME, key).replace(BREAK, "")
        after_key = tagged.json_opening.split(NAME)[1]
        if TYPE not in after_key:
            key, mark = yield from self._stream.name([self._after_key, after_key])
            return key, mark == self._after_key, self._key_start + key + mark
        middle, end = after_key.split(TYPE)
        key, _ = yield from self._stream.name([middle])
        kind, _ = yield from self._stream.name([end])
        mark = middle + kind + end
        return key, mark == self._after_key, self._key_start + key + mark

    def _by_the_parser(self, name: str, key: str, opening: str, text: str) -> Any:
        if any(end in text for end in self._tagged.ends):
            # The mark is in a string inside a JSON value, and the parser would end the call there.
            text = json_text(loads(text, strict=False)).replace("<", r"\u003c")
        head = self._head.replace(TOOL, name).replace(NUMBER, "0")
        return self._block.one_value(head + opening + text + self._tagged.closing + self._tail, key)


def _choices(schema: Any) -> Sequence[Any] | None:
    """Return the values that a schema lists, if it does."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    choices = schema.get("enum")
    return choices if isinstance(choices, list) else None
