"""Calls in JSON: a whole call as an object, or its arguments behind the tool's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.answer.text_stream import NotAsWritten, Reading, TextStream
from scheduler.answer.tool_calls.bracketed import JSON, bracketed
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.quoted_text import QUOTES, argument_name, nested_value, short_string
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
        key = yield from argument_name(stream, (":",))
        yield from stream.space()
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
        stream.read(1)
        yield from bracketed(stream, call, "}", JSON)
    elif opening in ("<", "["):
        yield call.end()
    else:
        text = yield from nested_value(stream, QUOTES)
        yield from _whole(call, text)


def _whole(call: WrittenCall, text: str) -> Reading[None]:
    arguments: Any = read_value(text) if text.strip() else None
    if isinstance(arguments, str):
        arguments = read_value(arguments) if arguments.strip() else None
    if arguments is not None and not isinstance(arguments, dict):
        raise NotAsWritten("the arguments are not an object")
    yield from call.members(arguments or {}, len(text))
    yield call.end()
