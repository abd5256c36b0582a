"""Values as models write them: in JSON, in Python, or between strings' own marks."""

from __future__ import annotations

import json
import re
from typing import Any

_DEEPEST = 200
_WORDS = {
    **{"true": True, "True": True, "false": False, "False": False},
    **{"null": None, "None": None, "nil": None},
}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_CLOSERS = {"[": "]", "(": ")"}
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
    reader.space()
    if reader.at < len(text):
        raise ValueError(f"{text[reader.at : reader.at + 20]!r} behind the value")
    return value


class _Literal:
    def __init__(self, text: str, mark: str) -> None:
        self.text = text
        self.at = 0
        self._mark = mark

    def space(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("the arguments are nested too deeply")
        self.space()
        if (quote := self._quote()) is not None:
            return self._string(quote)
        opening = self.text[self.at : self.at + 1]
        if opening == "{":
            return self._members(depth)
        if opening in ("[", "("):
            return self._items(_CLOSERS[opening], depth)
        return self._bare()

    def _quote(self) -> str | None:
        quotes = (self._mark, '"""', "'''", '"', "'") if self._mark else ('"""', "'''", '"', "'")
        return next((one for one in quotes if self.text.startswith(one, self.at)), None)

    def _string(self, quote: str) -> str:
        begun = self.at + len(quote)
        ends = re.compile(("" if quote == self._mark else r"\\.|") + re.escape(quote), re.DOTALL)
        found = next((one for one in ends.finditer(self.text, begun) if one[0] == quote), None)
        if found is None:
            raise ValueError("a string has no end")
        end, self.at = found.span()
        inside = self.text[begun:end]
        if quote == self._mark or "\\" not in inside:
            return inside
        if quote == '"':
            try:
                return str(json.loads(f'"{inside}"', strict=False))
            except ValueError:
                pass
        return unescaped(inside)

    def _items(self, closer: str, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        while not self._closed(closer):
            items.append(self.value(depth + 1))
            self._comma(closer)
        return items

    def _members(self, depth: int) -> dict[str, Any] | list[Any]:
        members: dict[str, Any] = {}
        items: list[Any] = []
        self.at += 1
        while not self._closed("}"):
            if (quote := self._quote()) is not None:
                key: Any = self._string(quote)
            elif (bare := _KEY.match(self.text, self.at)) is not None:
                key, self.at = bare[1].strip(), bare.end(1)
            else:
                key = self.value(depth + 1)
            self.space()
            if self.text.startswith(":", self.at) and isinstance(key, str) and not items:
                self.at += 1
                members[key] = self.value(depth + 1)
            elif not members:
                # One of Python's sets.
                items.append(key)
            else:
                raise ValueError(f"no value of {key!r}")
            self._comma("}")
        return items or members

    def _closed(self, closer: str) -> bool:
        self.space()
        if self.at == len(self.text):
            raise ValueError(f"no {closer}")
        closed = self.text[self.at] == closer
        self.at += closed
        return closed

    def _comma(self, closer: str) -> None:
        self.space()
        if self.text.startswith(",", self.at):
            self.at += 1
        elif not self.text.startswith(closer, self.at):
            raise ValueError(f"{self.text[self.at : self.at + 20]!r} instead of a comma")

    def _bare(self) -> Any:
        found = _BARE.match(self.text, self.at)
        assert found is not None
        word, self.at = found[0].strip(), found.end()
        if word in _WORDS:
            return _WORDS[word]
        if _NUMBER.fullmatch(word):
            plain = word.replace("_", "").lstrip("+")
            return int(plain) if plain.lstrip("-").isdigit() else float(plain)
        if not self._mark or not word or word in _NO_NUMBERS:
            raise ValueError(f"{word!r} is no value")
        return word
