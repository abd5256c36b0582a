"""A grammar in Lark's syntax as one regular expression: what a client asks of the text of a custom tool.

A call's text stands between quotes or tags, in which a grammar's greedy terminals would swallow what ends it.
A pattern has none of that: the rules of calls know how to hold a string to it in every notation. So each rule
is written out where it is named, which works for all grammars but those whose rules contain themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_PATTERN_CHARACTERS = 1 << 16
"""Bound on the expression: rules that name others twice double at each level."""

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\n]+|//[^\n]*|\#[^\n]*|\\\r?\n)
  | (?P<regex>/(?!/)(?:\\.|[^/\\\n])+/[a-z]*)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<arrow>->[ \t]*[A-Za-z_][A-Za-z0-9_]*)
  | (?P<directive>%[a-z]+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>[0-9]+)
  | (?P<mark>\.\.|[|()\[\]?*+~,.{}&:])
    """,
    re.VERBOSE,
)
_HEAD = re.compile(r"(?m)^[ \t]*[!?]*(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:\.-?[0-9]+)?[ \t]*:")
_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~")
_FLAGS = frozenset("isx")

_DIGIT, _EXPONENT = "[0-9]", "[eE][+-]?[0-9]+"
_DECIMAL = r"(?:[0-9]+\.[0-9]*|\.[0-9]+)"
_FLOAT = f"(?:[0-9]+{_EXPONENT}|{_DECIMAL}(?:{_EXPONENT})?)"
_COMMON = {
    "DIGIT": _DIGIT,
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": _DECIMAL,
    "FLOAT": _FLOAT,
    "SIGNED_FLOAT": f"[+-]?{_FLOAT}",
    "NUMBER": f"(?:{_FLOAT}|[0-9]+)",
    "SIGNED_NUMBER": f"[+-]?(?:{_FLOAT}|[0-9]+)",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": "[ \\t]+",
    "WS": "[ \\t\\f\\r\\n]+",
    "CR": "\\r",
    "LF": "\\n",
    "NEWLINE": "(?:\\r?\\n)+",
    "SH_COMMENT": "#[^\\n]*",
    "CPP_COMMENT": "//[^\\n]*",
    "SQL_COMMENT": "--[^\\n]*",
}
"""Lark's own module `common`."""


class Unwritable(Exception):
    """The grammar is no pattern; the text says why, as a clause."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str


@dataclass(slots=True)
class _Grammar:
    bodies: dict[str, list[_Token]] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    """Expressions of terminals that were imported, and of what has been written out."""
    ignored: list[list[_Token]] = field(default_factory=list)


def lark_pattern(grammar: str) -> str:
    """Return the regular expression (of the Rust crate, without anchors) of the texts that `start` matches.
    Raise Unwritable."""
    read = _read(grammar)
    if "start" not in read.bodies:
        raise Unwritable("it has no rule named 'start'")
    gap = "".join(f"|{_Writer(read, '', ()).all_of(tokens)}" for tokens in read.ignored)
    gap = f"(?:{gap[1:]})*" if gap else ""
    return f"{gap}{_named('start', read, gap, ())}"


def regex_pattern(regex: str) -> str:
    """Return `regex` without the anchors at its ends: it is of a whole text anyway."""
    if re.fullmatch(r"\^?(?:[^|\\]|\\.)*", regex, re.DOTALL):
        regex = regex.removeprefix("^")
        if regex.endswith("$") and (len(regex[:-1]) - len(regex[:-1].rstrip("\\"))) % 2 == 0:
            regex = regex[:-1]
    return regex


def _read(grammar: str) -> _Grammar:
    read = _Grammar()
    heads = list(_HEAD.finditer(grammar))
    ends = [head.start() for head in heads[1:]] + [len(grammar)]
    _directives(list(_tokens(grammar[: heads[0].start() if heads else None])), read)
    for head, end in zip(heads, ends, strict=True):
        name, tokens = head["name"], list(_tokens(grammar[head.end() : end]))
        first = next((at for at, token in enumerate(tokens) if token.kind == "directive"), len(tokens))
        if name in read.bodies:
            raise Unwritable(f"it has two rules named {name!r}")
        read.bodies[name] = tokens[:first]
        _directives(tokens[first:], read)
    return read


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        if (found := _TOKEN.match(text, at)) is None:
            raise Unwritable(f"it cannot be read at {text[at : at + 20]!r}")
        at = found.end()
        if found.lastgroup != "skip":
            yield _Token(str(found.lastgroup), found[0])


def _directives(tokens: list[_Token], read: _Grammar) -> None:
    """Read what begins with `%`, up to the next rule."""
    starts = [at for at, token in enumerate(tokens) if token.kind == "directive"]
    if tokens and (not starts or starts[0]):
        raise Unwritable(f"{tokens[0].text!r} stands outside of a rule")
    for start, end in zip(starts, [*starts[1:], len(tokens)][: len(starts)], strict=True):
        name, rest = tokens[start].text, tokens[start + 1 : end]
        match name:
            case "%import":
                _import(rest, read)
            case "%ignore":
                read.ignored.append(rest)
            case _:
                raise Unwritable(f"{name} is not supported")


def _import(tokens: list[_Token], read: _Grammar) -> None:
    words = [token.text for token in tokens if token.kind == "name"]
    aliases = [token.text.removeprefix("->").strip() for token in tokens if token.kind == "arrow"]
    if not words or words[0] != "common" or len(words) < 2:
        raise Unwritable("only terminals of 'common' can be imported")
    for name in words[1:]:
        if name not in _COMMON:
            raise Unwritable(f"'common' has no terminal {name!r} here")
        read.known[aliases[0] if aliases else name] = _COMMON[name]


def _named(name: str, read: _Grammar, gap: str, inside: tuple[str, ...]) -> str:
    """Write the rule or terminal `name` out. `inside`: the rules that are being written."""
    is_terminal = name.lstrip("_")[:1].isupper()
    if (known := read.known.get(name)) is None:
        if name in inside:
            raise Unwritable(f"the rule {name!r} contains itself, which no call can be held to")
        if (tokens := read.bodies.get(name)) is None:
            raise Unwritable(f"it has no rule named {name!r}")
        writer = _Writer(read, "" if is_terminal else gap, (*inside, name))
        known = read.known[name] = f"(?:{writer.all_of(tokens)})"
    return f"{known}{gap}" if is_terminal else known


@dataclass(slots=True)
class _Writer:
    """Writes the body of one rule. `gap`: what may stand after each terminal."""

    read: _Grammar
    gap: str
    inside: tuple[str, ...]
    tokens: list[_Token] = field(default_factory=list)
    at: int = 0

    def all_of(self, tokens: list[_Token]) -> str:
        self.tokens, self.at = tokens, 0
        written = self._alternatives()
        if self.at < len(tokens):
            raise Unwritable(f"{tokens[self.at].text!r} is not expected there")
        return written

    def _next(self) -> str:
        return self.tokens[self.at].text if self.at < len(self.tokens) else ""

    def _take(self, text: str = "") -> _Token:
        if self.at >= len(self.tokens) or (text and self._next() != text):
            raise Unwritable(f"{text or 'more'!r} is missing after {self.inside[-1:]}")
        self.at += 1
        return self.tokens[self.at - 1]

    def _alternatives(self) -> str:
        written = [self._sequence()]
        while self._next() == "|":
            self._take()
            written.append(self._sequence())
        return "|".join(written)

    def _sequence(self) -> str:
        written, size = [], 0
        while self._next() and self._next() not in ("|", ")", "]"):
            if self.tokens[self.at].kind == "arrow":
                self._take()
                continue
            written.append(self._repeated(self._atom()))
            size += len(written[-1])
            if size > MAX_PATTERN_CHARACTERS:
                raise Unwritable(f"written out it has more than {MAX_PATTERN_CHARACTERS} characters")
        return "".join(written)

    def _repeated(self, atom: str) -> str:
        match self._next():
            case "?" | "*" | "+" as mark:
                self._take()
                return f"(?:{atom}){mark}"
            case "~":
                self._take()
                least = most = self._number()
                if self._next() == "..":
                    self._take()
                    most = self._number()
                return f"(?:{atom}){{{least},{most}}}"
            case "{":
                self._take()
                least = most = self._number() if self._next() != "," else "0"
                if self._next() == ",":
                    self._take()
                    most = self._number() if self._next() != "}" else ""
                self._take("}")
                return f"(?:{atom}){{{least},{most}}}"
            case _:
                return atom

    def _number(self) -> str:
        if (token := self._take()).kind != "number":
            raise Unwritable(f"a number is missing at {token.text!r}")
        return token.text

    def _atom(self) -> str:
        token = self._take()
        match token.kind, token.text:
            case _, "(" | "[":
                inner = self._alternatives()
                self._take(")" if token.text == "(" else "]")
                return f"(?:{inner})" if token.text == "(" else f"(?:{inner})?"
            case "name", name:
                if (
                    self._next() == "{"
                    and self.at + 1 < len(self.tokens)
                    and (self.tokens[self.at + 1].kind in ("name", "string", "regex"))
                ):
                    raise Unwritable(f"{name!r} is a template, which is not supported")
                return _named(name, self.read, self.gap, self.inside)
            case "regex", text:
                return _of_regex(text) + self.gap
            case "string", text:
                if self._next() == "..":
                    self._take()
                    return _range(_unquoted(text), _unquoted(self._take().text)) + self.gap
                literal = "".join(map(_escaped, _unquoted(text.removesuffix("i"))))
                return (f"(?i:{literal})" if text.endswith("i") else f"(?:{literal})") + self.gap
            case _, text:
                raise Unwritable(f"{text!r} is not expected there")


def _of_regex(text: str) -> str:
    end = text.rindex("/")
    flags, inner = text[end + 1 :], text[1:end].replace("\\/", "/")
    if set(flags) - _FLAGS:
        raise Unwritable(f"of a regular expression's flags only i, s and x are supported: {text[:40]!r}")
    return f"(?{flags}:{inner})"


def _unquoted(text: str) -> str:
    try:
        inner = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text)
        return str(json.loads(inner, strict=False))
    except ValueError:
        raise Unwritable(f"{text[:40]!r} is no string") from None


def _range(first: str, last: str) -> str:
    if len(first) != 1 or len(last) != 1:
        raise Unwritable("both ends of a range are one character each")
    return f"[{_escaped(first)}-{_escaped(last)}]"


def _escaped(letter: str) -> str:
    if letter < " ":
        return f"\\x{ord(letter):02x}"
    return f"\\{letter}" if letter in _SPECIAL else letter
