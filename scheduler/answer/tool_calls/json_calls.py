"""Calls in JSON: a whole call as an object, or its arguments behind the tool's name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scheduler.answer.text_stream import NotAsWritten, Reading, TextStream, Waiting
from scheduler.answer.tool_calls.json_text import takes_strings
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.nested_text import nested_value
from scheduler.answer.tool_calls.quoted_text import (
    QUOTES,
    json_string,
    member_ends,
    python_string,
    short_string,
)
from scheduler.answer.tool_calls.written_call import WrittenCall

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters")

Begin = Callable[[str], Reading[WrittenCall]]


def json_call(stream: TextStream, begin: Begin, is_offered: Callable[[str], bool]) -> Reading[None]:
    """Read `{"name": "f", "arguments": {...}}`, its members in any order, or `{"f": {...}}`. Raise
    NotAsWritten, ValueError."""
    name, waiting, done = "", "", False
    yield from stream.one_of(["{"])
    while True:
        yield from stream.space()
        if (yield from stream.optional("}")):
            break
        key = yield from short_string(stream)
        yield from _colon(stream)
        opening = yield from stream.peek()
        if key in NAMES and opening in QUOTES and not name:
            name = yield from short_string(stream)
            if waiting:
                yield from _whole((yield from begin(name)), waiting)
                done = True
        elif (key in ARGUMENTS and name) or (opening == "{" and not name and is_offered(key)):
            yield from json_arguments(stream, (yield from begin(name or key)))
            done = True
        elif key in NAMES and opening == "{":
            yield from json_call(stream, begin, is_offered)
            done = True
        else:
            text = yield from nested_value(stream, QUOTES)
            waiting = text if key in ARGUMENTS else waiting
        yield from stream.space()
        if (yield from stream.optional(",")):
            continue
        if done and (yield from stream.peek()) != "}":
            # One brace too few changes nothing in whole arguments.
            return
        yield from stream.one_of(["}"])
        break
    if not done:
        if not name:
            raise NotAsWritten("it names no tool")
        yield from _whole((yield from begin(name)), waiting)


def json_arguments(stream: TextStream, call: WrittenCall) -> Reading[None]:
    """Read a call's arguments: an object, a string or a word that means one, or nothing at all. Raise
    NotAsWritten, ValueError."""
    yield from stream.space()
    opening = yield from stream.peek()
    if opening == "{":
        yield from _members(stream, call)
    elif opening in ("<", "["):
        yield call.end()
    else:
        text = yield from nested_value(stream, QUOTES)
        yield from _whole(call, text)


def _members(stream: TextStream, call: WrittenCall) -> Reading[None]:
    yield from stream.one_of(["{"])
    mark = ","
    while mark == ",":
        yield from stream.space()
        # Models write a comma behind the last member, which JSON does not allow.
        if (yield from stream.optional("}")):
            break
        key = yield from short_string(stream)
        yield from _colon(stream)
        takes = takes_strings(call.property_schema(key))
        if takes and (yield from stream.optional('"')):
            yield call.begin_string(key)
            yield from json_string(stream, call)
        elif takes and (yield from stream.optional("'")):
            yield call.begin_string(key)
            yield from python_string(stream, call, "'", partial(member_ends, stream))
        else:
            text = yield from nested_value(stream, QUOTES)
            yield from call.member(key, len(text), partial(read_value, text))
        yield from stream.space()
        mark = yield from stream.one_of([",", "}"])
    yield call.end()


def _colon(stream: TextStream) -> Waiting[None]:
    yield from stream.space()
    yield from stream.one_of([":"])
    yield from stream.space()


def _whole(call: WrittenCall, text: str) -> Reading[None]:
    arguments: Any = read_value(text) if text.strip() else None
    if isinstance(arguments, str):
        arguments = read_value(arguments) if arguments.strip() else None
    if arguments is not None and not isinstance(arguments, dict):
        raise NotAsWritten("the arguments are not an object")
    yield from call.members(arguments or {}, len(text))
    yield call.end()
