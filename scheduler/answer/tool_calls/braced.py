"""Calls as `call:name{key:value,...}` with marks around strings: Gemma 4's and FunctionGemma's."""

from __future__ import annotations

import re
from typing import Any

from scheduler.answer.answer_format import tool_syntax
from scheduler.answer.notations.description import TOOL, Braced, Notation
from scheduler.answer.tool_calls.block_text import BlockText, Pieces
from scheduler.answer.tool_calls.json_arguments import takes_strings
from scheduler.answer.tool_calls.nested_text import nested_value
from scheduler.answer.tool_calls.text_stream import NotAsWritten
from scheduler.answer.tool_calls.written_call import WrittenCall

_KEY = re.compile(r"""[^\s{}\[\]<>,"']+""")
_ANY = "k"
"""The tool's and the argument's name where the parser reads a value alone: it accepts few characters in
names, and the value does not depend on them."""
_GEMMA4 = tool_syntax("gemma4")


class BracedCalls:
    def __init__(self, block: BlockText, notation: Notation, braced: Braced) -> None:
        self._block = block
        self._stream = block.stream
        self._head = (notation.opening + notation.head).removeprefix(block.syntax.start)
        self._mark = braced.string_mark

    def pieces(self) -> Pieces:
        """Yield all calls of the block."""
        start, _ = self._head.split(TOOL)
        while not (yield from self._stream.ends()):
            self._block.begun_at = self._stream.position
            if self._block.calls.enough:
                yield from self._block.skip()
                return
            yield from self._stream.one_of([start])
            name, _ = yield from self._stream.name(["{"])
            if _KEY.fullmatch(name) is None:
                raise NotAsWritten("it names no tool")
            self._stream.put_back("{")
            call = self._block.begin(name)
            yield call.started
            yield from self._stream.one_of(["{"])
            yield from self._members(call)
            yield call.end()
            self._block.ended()

    def _members(self, call: WrittenCall) -> Pieces:
        if (yield from self._stream.optional("}")):
            return
        while True:
            call.inside_member = True
            key, _ = yield from self._stream.name([":"])
            if _KEY.fullmatch(key) is None:
                raise NotAsWritten(f"{key!r} is no name of an argument")
            if takes_strings(call.property_schema(key)) and (yield from self._stream.optional(self._mark)):
                yield call.begin_string(key)
                yield from self._block.text_until(call, [self._mark])
                yield call.end_string()
            else:
                text = yield from nested_value(self._stream, (self._mark,), escapes=False)
                yield call.member(key, self._value(text))
                self._block.sent()
            call.inside_member = False
            if (yield from self._stream.one_of([",", "}"])) == "}":
                return

    def _value(self, text: str) -> Any:
        """Return what the parser reads in a value. Both notations write values alike, but FunctionGemma's
        parser reads none with braces, so Gemma 4's parser reads its values first."""
        head = self._head.replace(TOOL, _ANY)
        if self._mark == _GEMMA4.string_mark:
            return self._block.one_value(f"{head}{{{_ANY}:{text}}}", _ANY)
        try:
            marked = text.replace(self._mark, _GEMMA4.string_mark)
            return self._block.one_value(f"call:{_ANY}{{{_ANY}:{marked}}}", _ANY, _GEMMA4)
        except NotAsWritten:
            return self._block.one_value(f"{head}{{{_ANY}:{text}}}", _ANY)
