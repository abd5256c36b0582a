"""Strings of JSON and of Python inside a call, sent while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from json import loads

from scheduler.answer.text_stream import LONGEST_NAME, NotAsWritten, Reading, TextStream, Waiting
from scheduler.answer.tool_calls.literals import unescaped
from scheduler.answer.tool_calls.written_call import WrittenCall

QUOTES = ('"', "'")
_ESCAPES = frozenset('"\\/bfnrtu')
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = {"x": 2, "u": 4, "U": 8}
"""How many digits follow the letter of an escape."""
_FOREIGN = frozenset("()[]{}<>\"'\n,")
"""Characters of no argument's name. Python's names have neither hyphens nor dollars; models write them where
the tool has them."""


def text_until(stream: TextStream, call: WrittenCall, marks: Sequence[str]) -> Reading[str]:
    """Yield the text before the first of `marks` as the inside of a string. Return that mark."""
    while True:
        text, mark = stream.before(marks)
        if text:
            yield call.string(text)
        if mark:
            return stream.read(len(mark))
        yield from stream.more()


def member_ends(stream: TextStream) -> Waiting[bool]:
    """Read what stands behind a member of an object, and return whether it does."""
    yield from stream.space()
    return (yield from stream.peek()) in ("", ",", "}", ")")


def marked_string(stream: TextStream, call: WrittenCall, mark: str) -> Reading[None]:
    """Yield the rest of a string between two marks. One in it ends it where a member can end; one that stands
    where a value begins opens a string in the text, which the next one ends."""
    is_open, last = False, ""
    while True:
        text, found = stream.before([mark])
        if text:
            last = text.rstrip()[-1:] or last
            yield call.string(text)
        if not found:
            yield from stream.more()
            continue
        stream.read(len(mark))
        if not is_open:
            behind = stream.position
            is_end = yield from member_ends(stream)
            stream.rewind(behind)
            if is_end:
                break
        is_open, last = not is_open and last != "" and last in ":=[({,", ""
        yield call.string(mark)
    yield call.end_string()


def json_string(stream: TextStream, call: WrittenCall) -> Reading[None]:
    """Yield the rest of a string of JSON. A bare line break in it is not JSON, but it is unambiguous. Raise
    NotAsWritten for an unknown escape."""
    while (yield from text_until(stream, call, ('"', "\\"))) != '"':
        letter = yield from stream.character()
        digits = (yield from _hex(stream, 4)) if letter == "u" else ""
        if letter not in _ESCAPES:
            raise NotAsWritten(f"'\\{letter}' is not an escape in a JSON string")
        yield call.json(f"\\{letter}{digits}")
    yield call.end_string()


def python_string(
    stream: TextStream, call: WrittenCall, quote: str, ends: Callable[[], Waiting[bool]]
) -> Reading[None]:
    """Yield the rest of one of Python's strings. Models forget to escape quotes in it: one is the end where
    `ends` reads what can stand behind it."""
    while True:
        if (yield from text_until(stream, call, (quote, "\\"))) == quote:
            behind = stream.position
            is_end = yield from ends()
            stream.rewind(behind)
            if is_end:
                break
            yield call.string(quote)
            continue
        letter = yield from stream.character()
        digits = (yield from _hex(stream, _DIGITS[letter])) if letter in _DIGITS else ""
        if letter == "N":
            raise NotAsWritten("it has an escape that only Python reads")
        yield call.string(unescaped(f"\\{letter}{digits}"))
    yield call.end_string()


def _hex(stream: TextStream, length: int) -> Waiting[str]:
    digits = ""
    while len(digits) < length:
        digits += yield from stream.character()
    if not _HEX.issuperset(digits):
        raise NotAsWritten(f"{digits!r} are no digits of an escape")
    return digits


def short_string(stream: TextStream) -> Waiting[str]:
    """Return a whole string: a name or a key. Raise NotAsWritten."""
    quote = yield from stream.one_of(QUOTES)
    parts: list[str] = []
    while True:
        text, mark = yield from stream.until((quote, "\\"), longest=LONGEST_NAME)
        parts.append(text)
        if mark == quote:
            break
        parts.append(mark + (yield from stream.character()))
        if len(parts) > LONGEST_NAME:
            raise NotAsWritten("it is too long for a name")
    inside = "".join(parts)
    return str(loads(f'"{inside}"', strict=False)) if quote == '"' else unescaped(inside)


def argument_name(stream: TextStream, ends: Sequence[str], mark: str = "") -> Waiting[str]:
    """Read the name of an argument, which may be a string, and one of `ends`. `mark`: what may stand around
    it. Raise NotAsWritten."""
    if mark and (yield from stream.optional(mark)):
        key, _ = yield from stream.name([mark])
    elif (yield from stream.peek()) in QUOTES:
        key = yield from short_string(stream)
    else:
        key, found = yield from stream.name(ends)
        stream.rewind(stream.position - len(found))
        if not (key := key.strip()) or not _FOREIGN.isdisjoint(key):
            raise NotAsWritten(f"{key!r} is no name of an argument")
    yield from stream.space()
    yield from stream.one_of(ends)
    return key.strip()
