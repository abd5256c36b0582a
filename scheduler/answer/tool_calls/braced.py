"""The arguments of a call as `{key:value,...}` with marks around strings: Gemma 4's and FunctionGemma's."""

from __future__ import annotations

from functools import partial

from scheduler.answer.notations.description import Braced
from scheduler.answer.text_stream import Reading, TextStream
from scheduler.answer.tool_calls.json_text import takes_strings
from scheduler.answer.tool_calls.literals import read_literal
from scheduler.answer.tool_calls.nested_text import nested_value
from scheduler.answer.tool_calls.quoted_text import (
    QUOTES,
    argument_name,
    marked_string,
    member_ends,
    python_string,
)
from scheduler.answer.tool_calls.written_call import WrittenCall

_CLOSERS = {"{": "}", "(": ")"}


def braced_arguments(stream: TextStream, call: WrittenCall, braced: Braced) -> Reading[None]:
    """Raise NotAsWritten, ValueError."""
    opening = yield from stream.one_of(["{", "("])
    closer = _CLOSERS[opening]
    mark = ","
    while mark == ",":
        yield from stream.space()
        if (yield from stream.optional(closer)):
            break
        key = yield from argument_name(stream, (":", "="), braced.string_mark)
        yield from stream.space()
        takes = takes_strings(call.property_schema(key))
        if takes and (yield from stream.optional(braced.string_mark)):
            yield call.begin_string(key)
            yield from marked_string(stream, call, braced.string_mark)
        elif takes and (quote := (yield from stream.peek())) in QUOTES:
            stream.read(1)
            yield call.begin_string(key)
            yield from python_string(stream, call, quote, partial(member_ends, stream))
        else:
            text = yield from nested_value(stream, (braced.string_mark, *QUOTES))
            yield from call.member(key, len(text), partial(read_literal, text, braced.string_mark))
        yield from stream.space()
        mark = yield from stream.one_of([",", closer])
    yield call.end()
