"""Strings of JSON and of Python inside a call, sent while they are written, and the ends of other values."""

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
_DEEPEST = 200
_FOREIGN = "()[]{}<>\"'\n,"
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


def marked_string(
    stream: TextStream, call: WrittenCall, mark: str, ends: Callable[[], Waiting[bool]]
) -> Reading[None]:
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
        if not is_open and (yield from stream.ahead(ends())):
            return
        is_open, last = not is_open and last != "" and last in ":=[({,", ""
        yield call.string(mark)


def json_string(stream: TextStream, call: WrittenCall) -> Reading[None]:
    """Yield the rest of a string of JSON. A bare line break in it is not JSON, but it is unambiguous. Raise
    NotAsWritten for an unknown escape."""
    while (yield from text_until(stream, call, ('"', "\\"))) != '"':
        letter = yield from stream.character()
        digits = (yield from _hex(stream, 4)) if letter == "u" else ""
        if letter not in _ESCAPES:
            raise NotAsWritten(f"'\\{letter}' is not an escape in a JSON string")
        yield call.json(f"\\{letter}{digits}")


def python_string(
    stream: TextStream, call: WrittenCall, quote: str, ends: Callable[[], Waiting[bool]]
) -> Reading[None]:
    """Yield the rest of one of Python's strings. Models forget to escape quotes in it: one is the end where
    `ends` reads what can stand behind it."""
    while True:
        if (yield from text_until(stream, call, (quote, "\\"))) == quote:
            if (yield from stream.ahead(ends())):
                break
            yield call.string(quote)
            continue
        letter = yield from stream.character()
        digits = (yield from _hex(stream, _DIGITS[letter])) if letter in _DIGITS else ""
        if letter == "N":
            raise NotAsWritten("it has an escape that only Python reads")
        yield call.string(unescaped(f"\\{letter}{digits}"))


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
    inside = yield from _inside(stream, quote, LONGEST_NAME)
    return str(loads(f'"{inside}"', strict=False)) if quote == '"' else unescaped(inside)


def argument_name(stream: TextStream, ends: Sequence[str], mark: str = "") -> Waiting[str]:
    """Read the name of an argument, which may be a string, and one of `ends`. `mark`: what may stand around
    it. Raise NotAsWritten."""
    if mark and (yield from stream.optional(mark)):
        key, _ = yield from stream.name([mark])
    elif (yield from stream.peek()) in QUOTES:
        key = yield from short_string(stream)
    else:
        key, found = yield from stream.name([*ends, *_FOREIGN])
        stream.rewind(stream.position - len(found))
        if not (key := key.strip()):
            raise NotAsWritten(f"{key!r} is no name of an argument")
    yield from stream.space()
    yield from stream.one_of(ends)
    return key


def nested_value(stream: TextStream, quotes: tuple[str, ...]) -> Waiting[str]:
    """Read and return a value's text up to the comma or bracket after it, which stays unread. `quotes`: the
    marks with which strings begin and end; in those of one character a backslash protects the next one. Raise
    NotAsWritten."""
    parts: list[str] = []
    depth = 0
    marks = (*quotes, *"([{}]),")
    while True:
        text, mark = stream.before(marks)
        parts.append(text)
        if not mark:
            yield from stream.more()
            continue
        if depth == 0 and mark in ",)]}":
            return "".join(parts)
        parts.append(stream.read(len(mark)))
        if mark in quotes:
            parts += (yield from _inside(stream, mark)), mark
        elif mark != ",":
            depth += 1 if mark in "([{" else -1
            if depth > _DEEPEST:
                raise NotAsWritten("the arguments are nested too deeply")
            if depth == 0 and mark in "]}":
                return "".join(parts)


def _inside(stream: TextStream, quote: str, longest: int | None = None) -> Waiting[str]:
    """Return the rest of a string as it is written, without the mark at its end, which is read."""
    parts: list[str] = []
    ends = (quote, "\\") if len(quote) == 1 else (quote,)
    while longest is None or len(parts) <= longest:
        text, mark = yield from stream.until(ends, longest=longest)
        parts.append(text)
        if mark == quote:
            return "".join(parts)
        parts.append(mark + (yield from stream.character()))
    raise NotAsWritten("it is too long for a name")
