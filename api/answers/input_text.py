"""The one text of a custom tool's call: a client gets it raw, the model writes it as the argument `input`."""

from __future__ import annotations

import json
import re

_BEGIN = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_BEGIN = re.compile(r'\s*(\{\s*("(i(n(p(u(t("(\s*(:\s*)?)?)?)?)?)?)?)?)?)?')
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_WHOLE = re.compile(
    r'(?:[^"\\]+|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    rf"|{_HIGH}{_LOW}|{_HIGH}(?=[^\\]|\\[^u]|\\u(?:[^dD]|[dD][^c-fC-F])))+"
)
"""Characters and escapes that are complete, up to the quote at the end. What may be half a character waits
for its other half."""
_HALF = re.compile(_HIGH)


class InputText:
    """Reads the text out of a call's arguments, piece by piece."""

    def __init__(self) -> None:
        self._held = ""
        """What was given and not read yet."""
        self._is_inside = False
        self._is_over = False

    def add(self, piece: str) -> str:
        """Return the text that is known now."""
        if self._is_over:
            return ""
        self._held += piece
        if not self._is_inside:
            if (begun := _BEGIN.match(self._held)) is None:
                return ""
            self._held, self._is_inside = self._held[begun.end() :], True
        found = _WHOLE.match(self._held)
        written = "" if found is None else found[0]
        self._held = self._held[len(written) :]
        if self._held.startswith('"'):
            self._held, self._is_over = "", True
        return _decoded(written)

    def end(self) -> str:
        """Return the rest at the end of the arguments. Where they have no text `input`, that is what they
        have instead: the one text under another name, or all of them as the model wrote them."""
        held, self._held = self._held, ""
        if self._is_over:
            return ""
        if self._is_inside:
            return "\N{REPLACEMENT CHARACTER}" if _HALF.match(held) else ""
        if _MAY_BEGIN.fullmatch(held):
            return ""
        return _other(held)


def input_text(arguments: str) -> str:
    """Return the text of a whole call, the same as in pieces."""
    reading = InputText()
    return reading.add(arguments) + reading.end()


def _other(arguments: str) -> str:
    try:
        read = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(read, dict):
        given = [read["input"]] if "input" in read else list(read.values())
        if len(given) == 1 and isinstance(given[0], str):
            return _without_halves(given[0])
    return arguments


def _decoded(escaped: str) -> str:
    try:
        return _without_halves(json.loads(f'"{escaped}"', strict=False))
    except ValueError:
        # An escape that JSON has not.
        return escaped


def _without_halves(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
