"""A grammar in Lark's syntax as one regular expression: what a client asks of the text of a custom tool.

A call's text stands between quotes or tags, in which a grammar's greedy terminals would swallow what ends it.
A pattern has none of that: the rules of calls know how to hold a string to it in every notation. So each rule
is written out where it is named, which works for all grammars but those whose rules contain themselves. What
the grammar library adds to Lark's syntax is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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
_SPECIAL = frozenset("\\.+*?()|[]{}^$#&-~")
_FLAGS = frozenset("isx")
_PRIORITY = re.compile(r"(?:\.\s*-?[0-9]+)?")

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


class Unreadable(Exception):
    """The grammar is none, or no pattern; the text says why, as a clause."""


class _Token(NamedTuple):
    kind: str
    text: str


_END = _Token("end", "")


def lark_pattern(grammar: str) -> str:
    """Return the regular expression (of the Rust crate, without anchors) of the texts that `start` matches.
    Raise Unreadable."""
    writer, ignored = _Writer(), list[list[_Token]]()
    for keyword, tokens in _statements(grammar):
        match keyword:
            case "%ignore":
                ignored.append(tokens)
            case "%import":
                writer.known.update(_imported(token.text for token in tokens))
            case "":
                writer.add(tokens)
            case _:
                raise Unreadable(f"{keyword} is not supported")
    try:
        gap = "|".join(writer.body(tokens, "", ()) for tokens in ignored)
        gap = f"(?:{gap})*" if gap else ""
        return f"{gap}{writer.named('start', gap, ())}"
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def regex_pattern(regex: str) -> str:
    """Return `regex` without the anchors at its ends: it is of a whole text anyway."""
    if re.fullmatch(r"\^?(?:[^|\\]|\\.)*", regex, re.DOTALL):
        regex = regex.removeprefix("^")
        if regex.endswith("$") and (len(regex[:-1]) - len(regex[:-1].rstrip("\\"))) % 2 == 0:
            regex = regex[:-1]
    return regex


def _statements(text: str) -> Iterator[tuple[str, list[_Token]]]:
    """Yield the keyword of each statement, empty for a rule, and its tokens."""
    lines, depth = list[list[_Token]]([[]]), 0
    for found in _TOKEN.finditer(text):
        token = _Token(str(found.lastgroup), found[0])
        if token.kind == "newline" and depth <= 0:
            lines.append([])
        elif token.kind not in ("newline", "skip"):
            depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
            lines[-1].append(token)
    statements = list[list[_Token]]()
    for line in filter(None, lines):
        kind, first = line[0]
        if kind == "keyword" or (kind == "name" and any(token.text == ":" for token in line)):
            statements.append(line)
        elif statements:
            # A line may begin with `|`, and with all that begins nothing.
            statements[-1] += line
        else:
            raise Unreadable(f"{first!r} stands outside of a rule")
    for one in statements:
        yield (one[0].text, one[1:]) if one[0].kind == "keyword" else ("", one)


def _imported(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and the expressions of terminals that they are imported for."""
    whole, _, alias = " ".join(words).partition("->")
    module, *names = re.findall(r"\w+", whole) or [""]
    if module != "common" or not names:
        raise Unreadable("only terminals of 'common' can be imported")
    for name in names:
        if name not in _COMMON:
            raise Unreadable(f"'common' has no terminal {name!r} here")
        yield alias.strip() or name, _COMMON[name]


@dataclass(frozen=True, slots=True)
class _Writer:
    """`gap`: what may stand after each terminal. `inside`: the rules that are being written."""

    rules: dict[str, tuple[str, list[_Token]]] = field(default_factory=dict)
    """What stands between a name and the colon, and what stands after it."""
    known: dict[str, str] = field(default_factory=dict)
    """Expressions of terminals that were imported, and of what has been written out."""

    def add(self, tokens: list[_Token]) -> None:
        name, colon = tokens[0].text.lstrip("!?"), tokens.index(_Token("mark", ":"))
        if name in self.rules:
            raise Unreadable(f"it has two rules named {name!r}")
        self.rules[name] = "".join(token.text for token in tokens[1:colon]), tokens[colon + 1 :]

    def named(self, name: str, gap: str, inside: tuple[str, ...]) -> str:
        """Write the rule or terminal `name` out."""
        is_terminal = name.lstrip("_")[:1].isupper()
        if (known := self.known.get(name)) is None:
            if name in inside:
                raise Unreadable(f"the rule {name!r} contains itself, which no call can be held to")
            if name not in self.rules:
                raise Unreadable(f"it has no rule named {name!r}")
            marks, tokens = self.rules[name]
            if not _PRIORITY.fullmatch(marks):
                raise Unreadable(f"{name + marks!r} is not supported")
            body = self.body(tokens, "" if is_terminal else gap, (*inside, name))
            known = self.known[name] = f"(?:{body})"
        return f"{known}{gap}" if is_terminal else known

    def body(self, tokens: list[_Token], gap: str, inside: tuple[str, ...]) -> str:
        return _Body(tokens, gap, lambda name: self.named(name, gap, inside)).whole()


class _Body:
    """Reads the alternatives of one rule, and writes them."""

    def __init__(self, tokens: list[_Token], gap: str, named: Callable[[str], str]) -> None:
        self._tokens = tokens
        self._gap = gap
        self._named = named
        self._at = 0

    def whole(self) -> str:
        written = self._alternatives()
        if self._at < len(self._tokens):
            raise Unreadable(f"{self._peek()!r} is not supported")
        return written

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> _Token:
        token = self._tokens[self._at] if self._at < len(self._tokens) else _END
        if token is _END or (wanted and token.text != wanted):
            before = " ".join(token.text for token in self._tokens[max(0, self._at - 3) : self._at])
            raise Unreadable(f"{wanted or 'more'!r} is missing after {before!r}")
        self._at += 1
        return token

    def _takes(self, text: str) -> bool:
        found = self._peek() == text
        self._at += found
        return found

    def _alternatives(self) -> str:
        written = ""
        while self._peek() not in (")", "]", ""):
            if self._takes("|"):
                written += "|"
            elif self._takes("->"):
                self._take()
            else:
                written += self._repeated(self._atom())
        return written

    def _atom(self) -> str:
        kind, text = self._take()
        match kind, text:
            case "mark", "(" | "[":
                inner = self._alternatives()
                self._take(")" if text == "(" else "]")
                return f"(?:{inner})" if text == "(" else f"(?:{inner})?"
            case "name", _:
                return self._named(text)
            case "regex", _:
                return _of_regex(text) + self._gap
            case "string", _ if self._takes(".."):
                return _range(_unquoted(text), _unquoted(self._take().text)) + self._gap
            case "string", _:
                literal = "".join(map(_escaped, _unquoted(text.removesuffix("i"))))
                return (f"(?i:{literal})" if text.endswith("i") else f"(?:{literal})") + self._gap
            case _:
                raise Unreadable(f"{text!r} is not supported")

    def _repeated(self, one: str) -> str:
        """Read how often `one` may stand."""
        if (mark := self._peek()) in ("?", "*", "+"):
            self._at += 1
            return f"(?:{one}){mark}"
        if self._takes("~"):
            least = most = self._number()
            if self._takes(".."):
                most = self._number()
        elif self._takes("{"):
            least = most = "0" if self._peek() == "," else self._number()
            if self._takes(","):
                most = "" if self._peek() == "}" else self._number()
            self._take("}")
        else:
            return one
        return f"(?:{one}){{{least},{most}}}"

    def _number(self) -> str:
        if not (text := self._take().text).isdecimal():
            raise Unreadable(f"a number is missing at {text!r}")
        return text


def _of_regex(text: str) -> str:
    end = text.rindex("/")
    flags, inner = text[end + 1 :], text[1:end].replace("\\/", "/")
    if set(flags) - _FLAGS:
        raise Unreadable(f"of a regular expression's flags only i, s and x are supported: {text[:40]!r}")
    return f"(?{flags}:{inner})"


def _unquoted(text: str) -> str:
    try:
        inner = re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", text)
        return str(json.loads(inner, strict=False))
    except ValueError:
        raise Unreadable(f"{text[:40]!r} is no string") from None


def _range(first: str, last: str) -> str:
    if len(first) != 1 or len(last) != 1:
        raise Unreadable("both ends of a range are one character each")
    return f"[{_escaped(first)}-{_escaped(last)}]"


def _escaped(letter: str) -> str:
    if letter < " ":
        return f"\\x{ord(letter):02x}"
    return f"\\{letter}" if letter in _SPECIAL else letter
