"""Arguments in brackets, a key and a value each, as JSON, Gemma and Python write them; and calls in JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from scheduler.answer.text_stream import NotAsWritten, Reading, TextStream, Waiting
from scheduler.answer.tool_calls.literals import read_literal, read_value
from scheduler.answer.tool_calls.quoted_text import (
    QUOTES,
    argument_name,
    json_string,
    marked_string,
    nested_value,
    python_string,
    short_string,
)
from scheduler.answer.tool_calls.written_call import WrittenCall

NAMES = ("name", "tool_name", "function")
ARGUMENTS = ("arguments", "parameters")
Begin = Callable[[str], Reading[WrittenCall]]
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
                yield from marked_string(stream, call, quote, partial(form.ends, stream))
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
        if (done or (name and waiting)) and (yield from stream.peek()) != "}":
            # One brace too few changes nothing in whole arguments.
            break
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
