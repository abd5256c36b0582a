"""Parameters between tags: Qwen3-Coder's, GLM's, MiniMax's, DeepSeek's, Kimi K3's.

A text keeps every character between its tags but the line breaks that the template writes around it. It may
contain the notation's own marks: a closing tag ends it where the call goes on as a call does, and behind a
whole call where the answer ends or another call begins. Until then the rest is held back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any

from scheduler.answer.notations.description import BREAK, NAME, Tagged
from scheduler.answer.text_stream import (
    HEAVY,
    NotAsWritten,
    Reading,
    TextEnded,
    TextStream,
    Waiting,
    is_control,
)
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.written_call import WrittenCall

_TEXT = {"string"}
"""The JSON types of what is always text."""
_LONGEST_SPACE = 64
_LONGEST_KEY = 128
_BEGINNINGS = {
    **{"string": "", "null": "nN", "boolean": "tfTF", "array": "[", "object": "{"},
    **{"number": "-0123456789NI", "integer": "-0123456789"},
}
"""How values of each type begin where they are not a bare text, also in Python's spelling."""
_TAG_END = re.compile(r"(</[^<>]*>|<\|[^<>]*\|>|>)$")
_QUOTED = re.compile(r"""\s*(["'])(.*?)\1(?:.*=\s*["']?([^"']*)["']?)?\s*""", re.DOTALL)
"""A name, and the value of the last attribute behind it."""
_FLAGS = ("true", "string")
"""The attribute's values of a text."""


class _Behind(Enum):
    """What stands behind a closing tag."""

    PARAMETER = auto()
    CALL = auto()
    """The end of the call, and then the end of the answer or another call."""
    TEXT = auto()
    """The end of the call, and then text: of the answer, or still of the value."""
    VALUE = auto()
    """Nothing that can stand behind a parameter."""
    CLOSING = auto()


@dataclass
class TaggedArguments:
    _stream: TextStream
    _call: WrittenCall
    _tagged: Tagged
    _closers: Sequence[str]
    """What ends a call."""
    _openers: Sequence[str]
    """What may begin one."""
    _begins_call: Callable[[], Waiting[bool]]
    """Reads it."""
    _calls_in: Callable[[str], bool]
    """Whether a text has such a beginning."""

    def __post_init__(self) -> None:
        tagged = self._tagged
        opening = tagged.opening.rstrip()
        self._key_start, self._after_key = opening.split(NAME)
        self._key_start = self._key_start.rstrip("\"'")
        self._lead = tagged.opening[len(opening) :]
        """White space before a value, which is not part of it."""
        self._closing = tagged.closing.strip()
        trail = tagged.closing[: len(tagged.closing) - len(tagged.closing.lstrip())]
        self._ends = (trail + self._closing, self._closing) if trail else (self._closing,)
        self._own_line = "\n" if tagged.closing.endswith("\n") else ""

    def read(self) -> Reading[None]:
        """Read all parameters, up to what ends the call. Raise NotAsWritten, ValueError."""
        parameters = 0
        while True:
            yield from self._stream.space()
            if not (yield from self._stream.optional(self._key_start)):
                break
            yield from self._parameter()
            parameters += 1
        if not parameters:
            yield from self._stream.ahead(self._stream.one_of(self._closers))
        yield self._call.end()

    def _parameter(self) -> Reading[None]:
        key, is_text = yield from self._key()
        key = self._call.spelled(key)
        ends, quoted, is_quoted = self._ends, self._tagged.quoted, False
        if quoted is not None:
            yield from self._stream.space()
            is_quoted = yield from self._stream.optional(quoted[0])
            ends = (quoted[1] + self._closing,) if is_quoted else ends
        types = self._call.json_types(key)
        # Only marked text is long.
        streams = (quoted is None or is_quoted) and (yield from self._streams(key, is_text, types))
        yield from self._stream.optional(self._lead)
        start = self._stream.position
        if streams:
            yield self._call.begin_string(key)
        end = yield from self._until_closed(start, ends, streams=streams)
        if streams:
            yield self._call.end_string()
            return
        text = self._stream.raw(start, end)
        if self._call.wraps(key) and (yield from self._wrapped(text)):
            return
        yield from self._call.member(key, len(text), partial(self._read, key, text, is_text, types))

    def _wrapped(self, text: str) -> Reading[bool]:
        """Yield the members of an object that is all of the arguments, and return whether it is."""
        if self._call.is_heavy(len(text)):
            yield HEAVY
        try:
            value = read_value(text)
        except ValueError:
            return False
        if not isinstance(value, dict) or not value or not all(map(self._call.lacks, value)):
            return False
        yield from self._call.members(value, len(text))
        return True

    def _streams(self, key: str, is_text: bool | None, types: frozenset[str]) -> Waiting[bool]:
        """Return whether the value is certainly text that stays as it is: by its tag, schema or beginning."""
        if self._tagged.has_json or self._call.wraps(key):
            return False
        if is_text is not None:
            return is_text and self._call.takes_string(key)
        if types == _TEXT:
            schema = self._call.property_schema(key)
            return not isinstance(schema, Mapping) or not schema.keys() & {"const", "enum"}
        return "string" in types and not (yield from self._begins_json(types))

    def _begins_json(self, types: frozenset[str]) -> Waiting[bool]:
        """Return whether the value may turn out to be one of the other types."""
        for length in range(len(self._lead) + 1, _LONGEST_SPACE):
            start = (yield from self._stream.peek(length))[:length]
            if (first := start.strip()) or len(start) < length:
                return any(first[:1] in _BEGINNINGS[kind] for kind in types)
        return True

    def _read(self, key: str, text: str, is_text: bool | None, types: frozenset[str]) -> Any:
        if is_text or (self._tagged.has_json and types == _TEXT and not text.lstrip().startswith('"')):
            return text
        if is_text is False or "string" not in types or self._tagged.has_json:
            try:
                return read_value(text)
            except ValueError:
                return text.strip()
        if types != _TEXT:
            return self._call.mixed(key, text)
        return text if self._call.takes(key, text) else text.strip()

    def _until_closed(self, start: int, ends: Sequence[str], *, streams: bool) -> Reading[int]:
        """Read a value and its closing tag, and yield it if it `streams`. Return the position of its end."""
        stream, call = self._stream, self._call
        marks = (*ends, self._own_line + self._key_start, self._key_start, *self._openers)
        if self._closing not in ends:
            marks = (*ends,)  # No mark counts between quotes.
        sent, opened = start, 0
        whole: tuple[int, int] | None = None
        """The end of the value, and behind its tag, if it is the last one with which the call is whole."""
        certain = True
        """Whether its tag closes no other one in the value."""
        while True:
            text, mark = stream.before(marks)
            if streams and whole is None and stream.position > sent:
                sent = stream.position
                yield call.string(text)
            if not mark:
                if not stream.closed:
                    yield None
                    continue
                if whole is None or (not certain and self._calls_in(stream.raw(start, whole[0]))):
                    raise TextEnded("a parameter has no end")
                break
            here = stream.position
            stream.read(len(mark))
            if mark in ends:
                behind, after = stream.position, (yield from stream.ahead(self._behind()))
                if after is _Behind.PARAMETER:
                    whole, certain = (here, behind), True
                    break
                if after is _Behind.CLOSING and opened == 0:
                    raise NotAsWritten("a parameter is closed twice")
                if after in (_Behind.CALL, _Behind.TEXT) and (opened == 0 or whole is None):
                    whole, certain = (here, behind), opened == 0
                    if certain and after is _Behind.CALL:
                        break
                opened = max(0, opened - 1)
            elif mark.endswith(self._key_start):
                key = yield from stream.ahead(self._key_within())
                begins = mark.startswith(self._own_line) or is_control(self._key_start)
                if opened == 0 and whole is None and begins and call.lacks(key):
                    # The closing tag is missing.
                    stream.rewind(here)
                    return here
                opened += key != ""
            elif whole is not None and certain:
                stream.rewind(here)
                if (yield from stream.ahead(self._begins_call())):
                    break
                stream.read(len(mark))
            if streams and whole is None:
                sent = stream.position
                yield call.string(mark)
        end, behind = whole
        stream.rewind(behind)
        if streams and end > sent:
            yield call.string(stream.raw(sent, end))
        return end

    def _behind(self) -> Waiting[_Behind]:
        stream, closers = self._stream, 0
        while True:
            yield from stream.space()
            if (yield from stream.ended()):
                return _Behind.CALL
            if not closers and (yield from stream.optional(self._key_start)):
                return _Behind.PARAMETER
            if not closers and (yield from stream.optional(self._closing)):
                return _Behind.CLOSING
            for closer in self._closers:
                if (yield from stream.optional(closer)):
                    closers += 1
                    break
            else:
                if (yield from self._begins_call()):
                    return _Behind.CALL
                return _Behind.TEXT if closers else _Behind.VALUE

    def _key(self) -> Waiting[tuple[str, bool | None]]:
        """Return the name of the parameter, and whether its value is text (or None if its schema decides
        that)."""
        first, *others = self._after_key.split(BREAK)
        end = _TAG_END.search(first)
        assert end is not None, "an opening tag without an end"
        text, _ = yield from self._stream.name([end[0]])
        for tag in others:
            yield from self._stream.space()
            yield from self._stream.one_of([tag])
        key, flag = _named(text)
        if not key:
            raise NotAsWritten("a parameter has no name")
        return key, (flag in _FLAGS) if self._tagged.json_opening and flag else None

    def _key_within(self) -> Waiting[str]:
        """Read the name of a parameter whose tag is within a value; "" if it is none."""
        text = ""
        while len(text) < _LONGEST_KEY and (letter := (yield from self._stream.peek())) not in ("", "\n"):
            if letter in ("<", ">"):
                return _named(text)[0]
            text += self._stream.read(1)
        return ""


def _named(text: str) -> tuple[str, str]:
    """Return the name in an opening tag, and the value of the attribute that tells its kind."""
    if (found := _QUOTED.fullmatch(text)) is not None:
        return found[2], found[3] or ""
    return text.strip(), ""
