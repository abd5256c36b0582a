"""Arguments in brackets, a key and a value each: in JSON, in the braces of Gemma, in a Python call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from scheduler.answer.text_stream import Reading, TextStream, Waiting
from scheduler.answer.tool_calls.literals import read_literal, read_value
from scheduler.answer.tool_calls.quoted_text import (
    QUOTES,
    argument_name,
    json_string,
    nested_value,
    python_string,
    text_until,
)
from scheduler.answer.tool_calls.written_call import WrittenCall

CLOSERS = {"{": "}", "(": ")"}


def _member_ends(stream: TextStream) -> Waiting[bool]:
    """Read what stands behind a member of an object, and return whether it does."""
    yield from stream.space()
    return (yield from stream.peek()) in ("", ",", "}", ")")


def _argument_ends(stream: TextStream) -> Waiting[bool]:
    """Read what stands behind an argument: another one, or the end of the call. Return whether it does."""
    yield from stream.space()
    if (yield from stream.optional(",")):
        yield from stream.space()
        yield from stream.word("_-.$")
        yield from stream.space()
        return (yield from stream.peek()) in ("", "=", ")")
    if not (yield from stream.optional(")")):
        return (yield from stream.ended())
    yield from stream.space()
    if (yield from stream.peek()) in ("", ",", ";", "]", "<"):
        return True
    yield from stream.word("_-.")
    return (yield from stream.peek()) == "("


@dataclass(frozen=True, slots=True)
class Brackets:
    colons: tuple[str, ...]
    """What may stand behind a key."""
    quotes: tuple[str, ...]
    read: Callable[[str], Any] = read_value
    mark: str = ""
    """What also stands around a string, which then has no escapes."""
    ends: Callable[[TextStream], Waiting[bool]] = _member_ends
    """Reads what can stand behind one of Python's strings."""
    is_json: bool = False


JSON = Brackets((":",), QUOTES, is_json=True)
PYTHON = Brackets(("=", ":"), ('"""', "'''", *QUOTES), ends=_argument_ends)


def braces(mark: str) -> Brackets:
    """Return those of Gemma, with a mark around strings."""
    return Brackets((":", "="), (mark, *QUOTES), partial(read_literal, mark=mark), mark)


def bracketed(stream: TextStream, call: WrittenCall, closer: str, form: Brackets) -> Reading[None]:
    """Read a call's arguments up to `closer`. Raise NotAsWritten, ValueError."""
    comma = ","
    while comma == ",":
        yield from stream.space()
        # Models write a comma behind the last one, which JSON does not allow.
        if (yield from stream.optional(closer)):
            break
        key = yield from argument_name(stream, form.colons, form.mark)
        yield from stream.space()
        if call.takes_string(key) and (quote := (yield from stream.any_of(form.quotes))):
            yield call.begin_string(key)
            if quote == form.mark:
                yield from text_until(stream, call, [quote])
            elif form.is_json and quote == '"':
                yield from json_string(stream, call)
            else:
                yield from python_string(stream, call, quote, partial(form.ends, stream))
            yield call.end_string()
        else:
            text = yield from nested_value(stream, (form.mark, *QUOTES) if form.mark else QUOTES)
            yield from call.member(key, len(text), partial(form.read, text))
        yield from stream.space()
        comma = yield from stream.one_of([",", closer])
    yield call.end()
