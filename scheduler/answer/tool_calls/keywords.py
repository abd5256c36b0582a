"""The arguments of a call in Python: `city='Paris', days=3)`."""

from __future__ import annotations

from functools import partial

from scheduler.answer.text_stream import Reading, TextStream, Waiting
from scheduler.answer.tool_calls.json_text import takes_strings
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.nested_text import nested_value
from scheduler.answer.tool_calls.quoted_text import QUOTES, argument_name, python_string
from scheduler.answer.tool_calls.written_call import WrittenCall


def keyword_arguments(stream: TextStream, call: WrittenCall) -> Reading[None]:
    """Read the arguments behind the bracket. Raise NotAsWritten, ValueError."""
    mark = ","
    while mark == ",":
        yield from stream.space()
        if (yield from stream.optional(")")):
            break
        key = yield from argument_name(stream, ("=", ":"))
        yield from stream.space()
        quote = (yield from _quote(stream)) if takes_strings(call.property_schema(key)) else ""
        if quote:
            yield call.begin_string(key)
            yield from python_string(stream, call, quote, partial(_ends, stream))
        else:
            text = yield from nested_value(stream, QUOTES)
            yield from call.member(key, len(text), partial(read_value, text.strip()))
        yield from stream.space()
        mark = yield from stream.one_of([",", ")"])
    yield call.end()


def _ends(stream: TextStream) -> Waiting[bool]:
    """Read what stands behind an argument: another one, or the end of the call. Return whether it does."""
    yield from stream.space()
    if (yield from stream.optional(",")):
        yield from stream.space()
        while (letter := (yield from stream.peek())) and (letter.isalnum() or letter in "_-.$"):
            stream.read(1)
        yield from stream.space()
        return (yield from stream.peek()) in ("", "=", ")")
    if not (yield from stream.optional(")")):
        return (yield from stream.ended())
    yield from stream.space()
    return (yield from stream.peek()) in ("", ",", ";", "]", "<") or (yield from _names_call(stream))


def _names_call(stream: TextStream) -> Waiting[bool]:
    while (letter := (yield from stream.peek())) and (letter.isalnum() or letter in "_-."):
        stream.read(1)
    return letter == "("


def _quote(stream: TextStream) -> Waiting[str]:
    """Read the quote of a string, which may be a triple one, and return it; "" if no string begins here."""
    for quote in ('"""', "'''", *QUOTES):
        if (yield from stream.optional(quote)):
            return quote
    return ""
