"""Find the end of a value in a notation of brackets and strings, without parsing the value."""

from __future__ import annotations

from scheduler.answer.text_stream import NotAsWritten, TextStream, Waiting

_DEEPEST = 200


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
            parts.append((yield from _string(stream, mark)))
        elif mark != ",":
            depth += 1 if mark in "([{" else -1
            if depth > _DEEPEST:
                raise NotAsWritten("the arguments are nested too deeply")
            if depth == 0 and mark in "]}":
                return "".join(parts)


def _string(stream: TextStream, quote: str) -> Waiting[str]:
    """Return the rest of a string, with the mark at its end."""
    parts: list[str] = []
    ends = [quote, "\\"] if len(quote) == 1 else [quote]
    while True:
        text, mark = yield from stream.until(ends)
        parts += [text, mark]
        if mark == quote:
            return "".join(parts)
        parts.append((yield from stream.character()))
