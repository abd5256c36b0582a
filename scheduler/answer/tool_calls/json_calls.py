"""Calls with a name before JSON arguments: Kimi K2's and both of Mistral's forms."""

from __future__ import annotations

from json import loads

from scheduler.answer.tool_calls.block_text import BlockText, Pieces
from scheduler.answer.tool_calls.json_arguments import JsonArguments, MalformedArguments
from scheduler.answer.tool_calls.reading import ParsedCall
from scheduler.answer.tool_calls.text_stream import NotAsWritten, Waiting
from scheduler.answer.tool_calls.written_call import WrittenCall

_MISTRAL_ARGUMENTS = "[ARGS]"
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"
_KIMI_END = "<|tool_call_end|>"


class JsonCalls:
    def __init__(self, block: BlockText) -> None:
        self._block = block
        self._stream = block.stream
        self._is_mistral = block.syntax.name == "mistral"

    def pieces(self) -> Pieces:
        """Yield all calls of the block."""
        yield from self._stream.space()
        if self._is_mistral and (yield from self._stream.optional("[")):
            yield from self._block.listed(self._listed_call)
            return
        while not (yield from self._stream.ends()):
            self._block.begun_at = self._stream.position
            if self._block.calls.enough:
                yield from self._block.skip()
                return
            head = yield from self._head()
            call = self._block.begin(head.name, head.call_id)
            yield call.started
            yield from self._arguments(call)
            if not self._is_mistral:
                yield from self._stream.space()
                yield from self._stream.one_of([_KIMI_END])
            self._block.ended()

    def _head(self) -> Waiting[ParsedCall]:
        """Return the name, and the id that some models write, as mlx-lm reads them."""
        mark = self._block.syntax.call_mark
        if mark:
            yield from self._stream.one_of([mark])
        arguments = _MISTRAL_ARGUMENTS if self._is_mistral else _KIMI_ARGUMENTS
        name, _ = yield from self._stream.name([arguments])
        end = "" if self._is_mistral else _KIMI_END
        return self._block.one_call(f"{mark}{name}{arguments}{{}}{end}")

    def _listed_call(self) -> Pieces:
        """`{"name": "f", "arguments": {...}}`"""
        for mark in ("{", '"name"', ":", '"'):
            yield from self._stream.one_of([mark])
            yield from self._stream.space()
        name, _ = yield from self._stream.name(['"'])
        for mark in (",", '"arguments"', ":"):
            yield from self._stream.space()
            yield from self._stream.one_of([mark])
        call = self._block.begin(_read_name(name))
        yield call.started
        yield from self._arguments(call)
        yield from self._stream.space()
        yield from self._stream.one_of(["}"])

    def _arguments(self, call: WrittenCall) -> Pieces:
        arguments = JsonArguments(call.schema, call.budget)
        start = self._stream.position
        while not arguments.done:
            text = yield from self._stream.some()
            try:
                piece, rest = arguments.feed(text)
            except MalformedArguments as error:
                if error.certain:
                    yield call.json(error.certain)
                self._block.sent_to = start + arguments.sent
                raise
            self._block.sent_to = start + arguments.sent
            self._stream.put_back(rest)
            if piece:
                yield call.json(piece)
        call.done = True


def _read_name(text: str) -> str:
    """Return a name between quotes. Raise NotAsWritten for one with escapes."""
    if "\\" in text:
        raise NotAsWritten("its name has escapes")
    return str(loads(f'"{text}"'))
