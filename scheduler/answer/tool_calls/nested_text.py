"""Find the end of a value in a notation of brackets and strings, without parsing the value."""

from __future__ import annotations

from scheduler.answer.tool_calls.text_stream import NotAsWritten, TextStream, Waiting

_DEEPEST = 200


def nested_value(stream: TextStream, quotes: tuple[str, ...], *, escapes: bool) -> Waiting[str]:
    """Read and return a value's text up to the comma or bracket after it, which stays unread. `quotes`: the
    marks with which strings begin and end. `escapes`: whether a backslash in a string protects the next
    character. Raise NotAsWritten."""
    parts: list[str] = []
    depth = 0
    marks = (*quotes, *"([{}]),")
    while True:
        text, mark = yield from stream.until(marks)
        parts.append(text)
        if depth == 0 and mark in ",)]}":
            stream.put_back(mark)
            return "".join(parts)
        parts.append(mark)
        if mark in quotes:
            parts.append((yield from _string(stream, mark, escapes=escapes)))
        elif mark != ",":
            depth += 1 if mark in "([{" else -1
            if depth > _DEEPEST:
                raise NotAsWritten("the arguments are nested too deeply")


def _string(stream: TextStream, quote: str, *, escapes: bool) -> Waiting[str]:
    """Return the rest of a string, with the mark at its end."""
    parts: list[str] = []
    while True:
        text, mark = yield from stream.until([quote, "\\"] if escapes else [quote])
        parts += [text, mark]
        if mark == quote:
            return "".join(parts)
        parts.append((yield from stream.character()))
