"""A grammar in Lark's syntax as one regular expression: what a client asks of the text of a custom tool.

A call's text stands between quotes or tags, in which a grammar's greedy terminals would swallow what ends it.
A pattern has none of that: the rules of calls know how to hold a string to it in every notation. So each rule
is written out where it is named, which works for all grammars but those whose rules contain themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from scheduler.grammar.lark_grammar import (
    Alternatives,
    Atom,
    Definition,
    Unreadable,
    is_terminal,
    read_grammar,
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


def lark_pattern(grammar: str) -> str:
    """Return the regular expression (of the Rust crate, without anchors) of the texts that `start` matches.
    Raise Unreadable."""
    read = read_grammar(grammar)
    writer = _Writer(read.definitions, dict(_imported(read.statements)))
    try:
        gap = "|".join(writer.all_of(one, "", ()) for one in read.ignored)
        gap = f"(?:{gap})*" if gap else ""
        return f"{gap}{writer.named('start', gap, ())}"
    except RecursionError as error:
        raise Unreadable("its rules are too deep") from error


def regex_pattern(regex: str) -> str:
    """Return `regex` without the anchors at its ends: it is of a whole text anyway."""
    if re.fullmatch(r"\^?(?:[^|\\]|\\.)*", regex, re.DOTALL):
        regex = regex.removeprefix("^")
        if regex.endswith("$") and (len(regex[:-1]) - len(regex[:-1].rstrip("\\"))) % 2 == 0:
            regex = regex[:-1]
    return regex


def _imported(statements: Iterable[tuple[str, list[str]]]) -> Iterator[tuple[str, str]]:
    """Yield names and the expressions of terminals that they are imported for."""
    for keyword, words in statements:
        if keyword != "%import":
            raise Unreadable(f"{keyword} is not supported")
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

    definitions: Mapping[str, Definition]
    known: dict[str, str]
    """Expressions of terminals that were imported, and of what has been written out."""

    def named(self, name: str, gap: str, inside: tuple[str, ...]) -> str:
        """Write the rule or terminal `name` out."""
        if (known := self.known.get(name)) is None:
            if name in inside:
                raise Unreadable(f"the rule {name!r} contains itself, which no call can be held to")
            if (one := self.definitions.get(name)) is None:
                raise Unreadable(f"it has no rule named {name!r}")
            if not _PRIORITY.fullmatch(one.marks):
                raise Unreadable(f"{name + one.marks!r} is not supported")
            body = self.all_of(one.alternatives, "" if is_terminal(name) else gap, (*inside, name))
            known = self.known[name] = f"(?:{body})"
        return f"{known}{gap}" if is_terminal(name) else known

    def all_of(self, alternatives: Alternatives, gap: str, inside: tuple[str, ...]) -> str:
        return "|".join(self._sequence(atoms, gap, inside) for atoms in alternatives)

    def _sequence(self, atoms: Iterable[Atom], gap: str, inside: tuple[str, ...]) -> str:
        written = []
        for atom in atoms:
            one = self._atom(atom, gap, inside)
            if (atom.least, atom.most) != (1, 1):
                one = f"(?:{one}){{{atom.least},{'' if atom.most is None else atom.most}}}"
            written.append(one)
        return "".join(written)

    def _atom(self, atom: Atom, gap: str, inside: tuple[str, ...]) -> str:
        match atom.kind, atom.text:
            case "group" | "optional" as kind, _:
                inner = self.all_of(atom.alternatives, gap, inside)
                return f"(?:{inner})" if kind == "group" else f"(?:{inner})?"
            case "name", name:
                return self.named(name, gap, inside)
            case "regex", text:
                return _of_regex(text) + gap
            case "range", _:
                first, last = map(_unquoted, atom.ends)
                return _range(first, last) + gap
            case "string", text:
                literal = "".join(map(_escaped, _unquoted(text.removesuffix("i"))))
                return (f"(?i:{literal})" if text.endswith("i") else f"(?:{literal})") + gap
            case _, text:
                raise Unreadable(f"{text!r} is not supported")


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
