"""Values as models write them: in JSON, in Python, or between strings' own marks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

_DEEPEST = 200
WORDS = {
    **{"true": True, "True": True, "false": False, "False": False},
    **{"null": None, "None": None, "nil": None},
}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_QUOTES = ('"""', "'''", '"', "'")
_BARE = re.compile(r"[^,\]})]*")
_KEY = re.compile(r"([^,:\[\]{}()]+):")
_NUMBER = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5}|[0-7]{1,3}|.)", re.DOTALL)
_LETTERS = {
    **{"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}


def unescaped(text: str) -> str:
    """Return a Python string's inside without escapes. Unknown ones keep their backslash, as in Python."""
    return _ESCAPE.sub(_unescape, text)


def _unescape(found: re.Match[str]) -> str:
    code = found[1]
    if len(code) > 1 and code[0] in "xuU":
        return chr(int(code[1:], 16))
    return chr(int(code, 8)) if code.isdigit() else _LETTERS.get(code, "\\" + code)


def read_value(text: str) -> Any:
    """Return the value of JSON, or of Python's spelling of it. Raise ValueError."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return read_literal(text)


def read_literal(text: str, mark: str = "") -> Any:
    """Return the value of a literal. `mark`: what stands at both ends of a string, without escapes in it; a
    word without it is a string, too. Raise ValueError."""
    reader = _Literal(text, mark)
    value = reader.value(0)
    if reader.rest():
        raise ValueError(f"{reader.rest()[:20]!r} behind the value")
    return value


class _Literal:
    def __init__(self, text: str, mark: str) -> None:
        self._text = text
        self._at = 0
        self._mark = mark
        self._quotes = (mark, *_QUOTES) if mark else _QUOTES

    def rest(self) -> str:
        """Return what was not read, behind white space."""
        return self._text[self._at :].lstrip()

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("the arguments are nested too deeply")
        if quote := self._take(self._quotes):
            return self._string(quote)
        if opening := self._take(_CLOSERS):
            return self._inside(_CLOSERS[opening], depth + 1)
        return self._bare()

    def _take(self, literals: Iterable[str]) -> str:
        """Read white space, and the first of `literals` that is next; "" if none is."""
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        found = next((one for one in literals if self._text.startswith(one, self._at)), "")
        self._at += len(found)
        return found

    def _string(self, quote: str) -> str:
        begun = self._at
        ends = re.compile(("" if quote == self._mark else r"\\.|") + re.escape(quote), re.DOTALL)
        found = next((one for one in ends.finditer(self._text, begun) if one[0] == quote), None)
        if found is None:
            raise ValueError("a string has no end")
        end, self._at = found.span()
        inside = self._text[begun:end]
        if quote == self._mark or "\\" not in inside:
            return inside
        if quote == '"':
            try:
                return str(json.loads(f'"{inside}"', strict=False))
            except ValueError:
                pass
        return unescaped(inside)

    def _inside(self, closer: str, depth: int) -> dict[str, Any] | list[Any]:
        members: dict[str, Any] = {}
        items: list[Any] = []
        while not self._take([closer]):
            if closer == "}" and (quote := self._take(self._quotes)):
                one: Any = self._string(quote)
            elif closer == "}" and (bare := _KEY.match(self._text, self._at)) is not None:
                one, self._at = bare[1].strip(), bare.end(1)
            else:
                one = self.value(depth)
            if closer == "}" and isinstance(one, str) and not items and self._take([":"]):
                members[one] = self.value(depth)
            elif not members:
                # Of a list, or of one of Python's sets.
                items.append(one)
            else:
                raise ValueError(f"no value of {one!r}")
            if not self._take([","]) and not self._text.startswith(closer, self._at):
                raise ValueError(f"{self.rest()[:20]!r} instead of a comma")
        return items if items or closer != "}" else members

    def _bare(self) -> Any:
        found = _BARE.match(self._text, self._at)
        assert found is not None
        word, self._at = found[0].strip(), found.end()
        if word in WORDS:
            return WORDS[word]
        if _NUMBER.fullmatch(word):
            plain = word.replace("_", "").lstrip("+")
            return int(plain) if plain.lstrip("-").isdigit() else float(plain)
        if not self._mark or not word or word in _NO_NUMBERS:
            raise ValueError(f"{word!r} is no value")
        return word
