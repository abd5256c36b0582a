"""Calls as a Python list of calls with keyword arguments: `[f(city='Paris', days=3), g()]`."""

from __future__ import annotations

import re

from scheduler.answer.tool_calls.block_text import BlockText, Pieces
from scheduler.answer.tool_calls.json_arguments import takes_strings
from scheduler.answer.tool_calls.nested_text import nested_value
from scheduler.answer.tool_calls.text_stream import NotAsWritten, Waiting
from scheduler.answer.tool_calls.written_call import WrittenCall

_NAME = re.compile(r"[\w.]+")
_QUOTES = ('"', "'")
_ESCAPES = {
    **{"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
"""Python's escapes. Python leaves any other letter with its backslash."""
_OCTAL_OR_NAMED = "01234567N"
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = {"x": 2, "u": 4, "U": 8}
"""How many digits follow the letter of an escape."""


class KeywordCalls:
    def __init__(self, block: BlockText) -> None:
        self._block = block
        self._stream = block.stream

    def pieces(self) -> Pieces:
        """Yield all calls of the block."""
        yield from self._stream.space()
        yield from self._stream.one_of(["["])
        yield from self._block.listed(self._call)

    def _call(self) -> Pieces:
        name, _ = yield from self._stream.name(["("])
        if _NAME.fullmatch(name) is None:
            raise NotAsWritten("it names no tool")
        call = self._block.begin(name)
        yield call.started
        yield from self._members(call)
        yield call.end()

    def _members(self, call: WrittenCall) -> Pieces:
        yield from self._stream.space()
        if (yield from self._stream.optional(")")):
            return
        while True:
            call.inside_member = True
            key, _ = yield from self._stream.name(["="])
            if not (key := key.strip()).isidentifier():
                raise NotAsWritten(f"{key!r} is no name of an argument")
            yield from self._stream.space()
            quote = (yield from self._quote()) if takes_strings(call.property_schema(key)) else ""
            if quote:
                yield call.begin_string(key)
                yield from self._string(call, quote)
                yield call.end_string()
            else:
                text = yield from nested_value(self._stream, _QUOTES, escapes=True)
                yield call.member(key, self._block.one_value(f"[f({key}={text})]", key))
                self._block.sent()
            call.inside_member = False
            yield from self._stream.space()
            if (yield from self._stream.one_of([",", ")"])) == ")":
                return
            yield from self._stream.space()

    def _quote(self) -> Waiting[str]:
        """Read the quote of a string, which may be a triple one, and return it; "" if no string begins
        here."""
        if (start := (yield from self._stream.peek())) not in _QUOTES:
            return ""
        triple = start * 3
        if (yield from self._stream.optional(triple)):
            return triple
        yield from self._stream.optional(start)
        return start

    def _string(self, call: WrittenCall, quote: str) -> Pieces:
        """Yield the inside of a string. A bare line break in it is not Python, but it is unambiguous."""
        while True:
            if (yield from self._block.text_until(call, [quote, "\\"])) == quote:
                return
            text = yield from self._escaped()
            if text:
                yield call.string(text)
            self._block.sent()

    def _escaped(self) -> Waiting[str]:
        """Return the character that the rest of an escape means. Raise NotAsWritten."""
        letter = yield from self._stream.character()
        if letter in _OCTAL_OR_NAMED:
            raise NotAsWritten("it has an escape that only Python reads")
        if (length := _DIGITS.get(letter)) is None:
            return _ESCAPES.get(letter, "\\" + letter)
        digits = ""
        while len(digits) < length:
            digits += yield from self._stream.character()
        if not _HEX.issuperset(digits):
            raise NotAsWritten("it has an escape that is none of Python's")
        return chr(int(digits, 16))
