"""Arguments as nested elements, one a parameter: MiniMax M3's.

    <city>Oslo</city><days><item>1</item><item>2</item></days>

with a mark before each tag, by which tags in a text are no tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from scheduler.answer.schema_check import properties_of
from scheduler.answer.text_stream import NotAsWritten, Reading, TextStream
from scheduler.answer.tool_calls.coercion import takes_strings
from scheduler.answer.tool_calls.literals import read_value
from scheduler.answer.tool_calls.quoted_text import text_until
from scheduler.answer.tool_calls.written_call import WrittenCall

_ITEM = "item"
_DEEPEST = 32
_EMPTY: dict[Any, Callable[[], Any]] = {"array": list, "object": dict}


def element_arguments(stream: TextStream, call: WrittenCall, mark: str) -> Reading[None]:
    """Read elements up to a closing tag of something else. Raise NotAsWritten."""
    while True:
        yield from stream.space()
        begun = stream.position
        yield from stream.one_of([mark])
        if (yield from stream.peek(2)) == "</":
            stream.rewind(begun)
            break
        yield from stream.one_of(["<"])
        key, _ = yield from stream.name([">"])
        if not key or not key[0].isalpha() or key != key.strip():
            raise NotAsWritten(f"{key!r} is no name of an argument")
        types, closing = call.json_types(key), f"{mark}</{key}>"
        if types == {"string"} and call.takes_string(key):
            yield call.begin_string(key)
            yield from text_until(stream, call, [closing])
            yield call.end_string()
            continue
        text, _ = yield from stream.until([closing])
        yield from call.member(key, len(text), partial(_read, text, key, types, call, mark))
    yield call.end()


def _read(text: str, key: str, types: frozenset[str], call: WrittenCall, mark: str) -> Any:
    schema = properties_of(call.schema).get(key, {})
    if mark in text:
        return _nested(iter(re.split(rf"{re.escape(mark)}<(/?)([^<>/\s]+)>", text)), None, schema)
    return call.mixed(key, text) if "string" in types else _leaf(text, schema)


def _nested(parts: Iterator[str], end: str | None, schema: Any, depth: int = 0) -> Any:
    """Return the value of elements up to the closing tag `end`: a text, a list of items, or an object, in
    which a name that is there twice has a list. `parts`: a text, then of each tag "/" or "", its name and
    what is behind it."""
    if depth > _DEEPEST:
        raise NotAsWritten("the arguments are nested too deeply")
    text = next(parts)
    values: dict[str, list[Any]] = {}
    for slash, name in zip(parts, parts, strict=False):
        if slash:
            break
        values.setdefault(name, []).append(_nested(parts, name, _schema_of(schema, name), depth + 1))
        text += next(parts)
    else:
        slash, name = "", None
    if name != end:
        raise NotAsWritten(f"no end of {end}")
    if not values:
        return _leaf(text, schema)
    if text.strip():
        raise NotAsWritten(f"{text.strip()[:40]!r} stands between elements")
    if [*values] == [_ITEM]:
        return values[_ITEM]
    return {name: several if len(several) > 1 else several[0] for name, several in values.items()}


def _schema_of(schema: Any, name: str) -> Any:
    if not isinstance(schema, dict):
        return {}
    return schema.get("items", {}) if name == _ITEM else properties_of(schema).get(name, {})


def _leaf(text: str, schema: Any) -> Any:
    if isinstance(schema, dict) and "type" in schema and takes_strings(schema):
        return text
    if not text.strip() and isinstance(schema, dict) and schema.get("type") in _EMPTY:
        return _EMPTY[schema["type"]]()
    try:
        return read_value(text)
    except ValueError:
        return text
