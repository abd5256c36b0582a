"""A client's grammar in Lark's own syntax, read: its rules, terminals and statements. What the grammar
library adds to it is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t\r\f]+|(?:\#|//)[^\n]*|\\\r?\n)
  | (?P<newline>\n)
  | (?P<keyword>%[a-z]+)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?:\\.|[^/\\])+/[a-z]*)
  | (?P<name>(?:!(?=[_?a-z]))?(?:\?(?=[a-z]))?[A-Za-z_](?:[A-Za-z0-9_]|-(?!>))*)
  | (?P<number>0[xX][0-9a-fA-F]+|[+-]?[0-9]+)
  | (?P<opaque><[^<>\s]+>|@[\w-]+)
  | (?P<mark>::|\.\.|->|.)
    """,
    re.VERBOSE,
)


class Unreadable(Exception):
    """The grammar is none, or not of the kind that is wanted; the text says why, as a clause."""


class Atom(NamedTuple):
    """What stands in an alternative, `least` to `most` times; `most` is None for any number."""

    kind: str
    """name, string, range, regex, group or optional."""
    text: str
    """As it is written, without how often it stands."""
    alternatives: Alternatives
    """Those of a group."""
    ends: tuple[str, str]
    """Those of a range."""
    least: int
    most: int | None


Alternatives: TypeAlias = list[list[Atom]]


class Definition(NamedTuple):
    """A rule or a terminal. `marks` stand between its name and the colon."""

    marks: str
    alternatives: Alternatives


@dataclass(slots=True)
class Grammar:
    definitions: dict[str, Definition] = field(default_factory=dict)
    statements: list[tuple[str, list[str]]] = field(default_factory=list)
    """What begins with `%`, but not %ignore, and the words behind it."""
    ignored: list[Alternatives] = field(default_factory=list)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


def is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def read_grammar(text: str) -> Grammar:
    """Raise Unreadable."""
    try:
        return _Reader(text).grammar()
    except ValueError as error:
        raise Unreadable(f"it cannot be read: {error}") from error
    except RecursionError as error:
        raise Unreadable("its brackets are too deep") from error


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[_Token] = []
        self._at = at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None, "a mark is any character"
            kind, start, at = str(found.lastgroup), at, found.end()
            if kind != "skip":
                self._tokens.append(_Token(kind, found[0], start, at))
        self._end = _Token("end", "", at, at)

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else self._end

    def _take(self, wanted: str = "") -> _Token:
        token = self._peek()
        if token.kind == "end" or (wanted and token.text != wanted):
            before = self._text[max(0, token.start - 20) : token.start]
            raise Unreadable(f"{wanted or 'more'!r} is missing after {before!r}")
        self._at += 1
        return token

    def _since(self, first: _Token) -> str:
        return self._text[first.start : self._tokens[self._at - 1].end]

    def grammar(self) -> Grammar:
        found = Grammar()
        while (token := self._peek()).kind != "end":
            match token.kind:
                case "newline":
                    self._take()
                case "name":
                    self._definition(found)
                case "keyword":
                    self._statement(found)
                case _:
                    raise Unreadable(f"{token.text!r} stands outside of a rule")
        return found

    def _definition(self, found: Grammar) -> None:
        head = self._take()
        name = head.text.lstrip("!?")
        while (token := self._take()).text != ":":
            if token.kind == "newline":
                raise Unreadable(f"{name!r} stands outside of a rule")
        if name in found.definitions:
            raise Unreadable(f"it has two rules named {name!r}")
        marks = self._text[head.end : token.start].strip()
        found.definitions[name] = Definition(marks, self._alternatives(""))

    def _statement(self, found: Grammar) -> None:
        first = self._take()
        if first.text == "%ignore":
            found.ignored.append(self._alternatives(""))
            return
        words = []
        while self._goes_on(""):
            words.append(self._take().text)
        found.statements.append((first.text, words))

    def _goes_on(self, closing: str) -> bool:
        """Return whether the definition does. A line may begin with `|`, and with all that begins nothing."""
        token = self._peek()
        if token.kind != "newline":
            return token.kind != "end" and token.text != closing
        if closing in (")", "]"):
            return True
        while (token := self._peek(1)).kind == "newline":
            self._at += 1
        ahead = 1
        if token.kind == "name":
            while (token := self._peek(ahead)).text not in (":", "\n", ""):
                ahead += 1
            return token.text != ":"
        return token.kind not in ("end", "keyword") and token.text != closing

    def _alternatives(self, closing: str) -> Alternatives:
        found: Alternatives = [[]]
        while self._goes_on(closing):
            match self._peek().text:
                case "\n":
                    self._take()
                case "|":
                    self._take()
                    found.append([])
                case "->":
                    self._take()
                    self._take()
                case _:
                    found[-1].append(self._atom())
        return found

    def _atom(self) -> Atom:
        token = self._take()
        kind, ends = token.kind, ("", "")
        alternatives: Alternatives = []
        match token.kind, token.text:
            case "mark", "(" | "[":
                kind, closing = ("group", ")") if token.text == "(" else ("optional", "]")
                alternatives = self._alternatives(closing)
                self._take(closing)
            case "string", first if self._peek().text == "..":
                self._take()
                kind, ends = "range", (first, self._take().text)
            case "string" | "name" | "regex", _:
                pass
            case _:
                raise Unreadable(f"{token.text!r} is not supported")
        return Atom(kind, self._since(token), alternatives, ends, *self._times())

    def _times(self) -> tuple[int, int | None]:
        """Read how often the atom before may stand."""
        if (token := self._peek()).kind != "mark":
            return 1, 1
        match token.text:
            case "?" | "*" | "+" as mark:
                self._take()
                return int(mark == "+"), 1 if mark == "?" else None
            case "~" if self._peek(1).kind == "number":
                self._take()
                least = most = self._number()
                if self._peek().text == "..":
                    self._take()
                    most = self._number()
                return least, most
            case "{":
                self._take()
                upper: int | None
                least = upper = 0 if self._peek().text == "," else self._number()
                if self._peek().text == ",":
                    self._take()
                    upper = None if self._peek().text == "}" else self._number()
                self._take("}")
                return least, upper
            case _:
                return 1, 1

    def _number(self) -> int:
        if not (token := self._take()).text.isdecimal():
            raise Unreadable(f"a number is missing at {token.text!r}")
        return int(token.text)
