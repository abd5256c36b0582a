"""Patterns that begin with look-aheads, as the patterns that a text must match all together.

Regular expressions of generators ask for several things of one text with look-aheads at its start: zod's of
an e-mail address, pydantic's of a decimal number, everybody's of a password. The grammar library has none,
but it holds a text to several patterns. `^(?=A)B` is `^A` and `^B`. `^(?!A)B` needs the complement of `A`,
which is written for three forms of it: a character, nothing but characters of one class, and a text anywhere
(which is then kept out of all lines: `.` ends at a line break).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler.grammar.text_pattern import lacking

_PLAIN = r"(?:\\[^A-Za-z0-9]|[^\\.*+?()|\[\]{}^$])"
_CLASS = r"\[(?P<letters>(?:\\.|[^\]\\^])(?:\\.|[^\]\\])*)\]"
_CHARACTER, _ONE_OF = re.compile(_PLAIN), re.compile(_CLASS)
_NOTHING_BUT = re.compile(rf"\^?{_CLASS}\*\$")
_ANYWHERE = re.compile(rf"\.\*(?P<text>{_PLAIN}+)")


def without_lookaheads(pattern: str) -> list[str] | None:
    """Return patterns that together match the same texts, or None if it does not begin with look-aheads, or
    with one of another form."""
    if not pattern.startswith("^(?") or any(
        letter == "|" and not depth for _, letter, depth in _outer(pattern)
    ):
        return None
    found, rest = list[str](), pattern[1:]
    while rest[:3] in ("(?=", "(?!"):
        end = next((place for place, letter, depth in _outer(rest) if letter == ")" and not depth), None)
        if end is None:
            return None
        inner = rest[3:end]
        one = f"^(?:{inner.removeprefix('^')})" if rest[2] == "=" else _complement(inner)
        if one is None:
            return None
        found.append(one)
        rest = rest[end + 1 :]
    return [f"^{rest}", *found] if found else None


def _complement(inner: str) -> str | None:
    """Return a pattern of the texts that `^inner` does not match."""
    if _CHARACTER.fullmatch(inner):
        return rf"^([^{re.escape(_unescaped(inner))}][\s\S]*)?$"
    if found := _ONE_OF.fullmatch(inner):
        return rf"^([^{found['letters']}][\s\S]*)?$"
    if found := _NOTHING_BUT.fullmatch(inner):
        return f"[^{found['letters']}]"
    if found := _ANYWHERE.fullmatch(inner):
        return _lacking(_unescaped(found["text"]))
    return None


def _lacking(text: str) -> str | None:
    """Return a pattern of the texts in which `text` does not occur."""
    if text.find(text[0], 1) < 0:
        return lacking(text)
    if text.strip(text[0]):
        return None
    one, others = re.escape(text[0]), f"[^{re.escape(text[0])}]"
    return f"^({others}|{one}{{1,{len(text) - 1}}}{others})*{one}{{0,{len(text) - 1}}}$"


def _unescaped(plain: str) -> str:
    return re.sub(r"\\(.)", r"\1", plain)


def _outer(pattern: str) -> Iterator[tuple[int, str, int]]:
    """Yield place, letter and depth in brackets of each letter that is neither escaped nor in a class."""
    depth, in_class, skip = 0, False, False
    for place, letter in enumerate(pattern):
        if skip or letter == "\\":
            skip = not skip
        elif in_class:
            in_class = letter != "]"
        else:
            in_class = letter == "["
            depth += (letter == "(") - (letter == ")")
            yield place, letter, depth
