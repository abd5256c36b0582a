"""The rules of a client's grammar: one that no finite text fits, and how deep they lead.

`x: "c" x` goes on for ever, and a terminal may be an intersection of which nothing is left. The grammar
library finds neither before an answer reaches it, and the answer then never ends, or fails. It compiles a
rule inside of the first that names it, so a chain of 20,000 rules is deeper than its stack. Here the rules
are read as the library's Lark parser reads them, as far as that decides both. What cannot be read is left to
the library.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scheduler.grammar.endless import endless_reference

_TOKEN = re.compile(
    r"""
    (?P<skip>[ \t]+|(?:\#|//)[^\n]*)
  | (?P<newline>(?:\r?\n)+)
  | (?P<json>%(?:json|llguidance|regex)\b)
  | (?P<keyword>%[a-z]+)
  | (?P<string>"(?:\\.|[^"\\\n])*"i?)
  | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
  | (?P<rule>!?[_?]?[a-z][_a-z0-9-]*)
  | (?P<terminal>_?[A-Z][_A-Z0-9-]*)
  | (?P<number>0[xX][0-9a-fA-F]+|[+-]?[0-9]+)
  | (?P<opaque><[^<>\s]+>|@[\w-]+)
  | (?P<mark>::|\.\.|->|.)
    """,
    re.VERBOSE,
)
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Unfit:
    """A rule, a terminal or a JSON schema that no answer can be held to."""

    name: str
    line: int
    """From 1."""
    why: str


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    value: Any = None


_END = _Token("end", "", -1, -1)
_Uses = list[tuple[str, bool]]
"""Symbols of one alternative, and whether each must be written."""


@dataclass(slots=True)
class _Symbol:
    """A rule, or a group within one."""

    name: str
    start: int
    """Where it stands in the grammar."""
    alternatives: list[_Uses] = field(default_factory=list)
    why: str = "has no end, so that no finite text fits it"


@dataclass(frozen=True, slots=True)
class _Terminal:
    """A terminal in the (nested) grammar whose definitions it is made of."""

    scope: str
    name: str
    """Or its expression."""
    start: int


MAX_DEPTH = 1000
"""Rules and groups inside of each other. Each takes the library up to 10 KB of its stack
(`../shared/deep_stack.py`)."""


class LarkRules:
    """The rules of one grammar in Lark's syntax."""

    def __init__(self, grammar: str) -> None:
        self._grammar = grammar
        self._tokens: list[_Token] = []
        self._at = 0
        self._symbols: dict[str, _Symbol] = {}
        self._terminals: dict[str, _Terminal] = {}
        self._definitions: defaultdict[str, list[str]] = defaultdict(list)
        """Statements and terminals of each grammar, which a terminal may be made of."""
        try:
            self._read()
            self._is_read = True
        except (IndexError, ValueError, RecursionError):
            self._is_read = False  # The library says what is wrong with it.

    def _read(self) -> None:
        """Raise ValueError, IndexError or RecursionError for what is no grammar."""
        at = 0
        while at < len(self._grammar):
            found = _TOKEN.match(self._grammar, at)
            assert found is not None, "a mark is any character, but a newline"
            kind, start, at, value = str(found.lastgroup), at, found.end(), None
            if kind == "json":
                begins = re.compile(r"\s*").match(self._grammar, at)
                value, at = _JSON.raw_decode(self._grammar, at if begins is None else begins.end())
            if kind != "skip":
                self._tokens.append(_Token(kind, found[0], start, at, value))
        self._grammar_of("", "end")

    def _peek(self, ahead: int = 0) -> _Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _grammar_of(self, scope: str, closing: str) -> None:
        """Read definitions and statements, up to the end or the bracket that closes a nested grammar."""
        while (token := self._peek()).kind != "end" and token.text != closing:
            if token.kind == "newline":
                self._take()
            elif token.kind == "rule":
                self._rule(scope)
            else:
                while self._goes_on(closing):
                    self._take()
                last = self._tokens[self._at - 1]
                if token.text != "%ignore":
                    self._definitions[scope].append(self._grammar[token.start : last.end])

    def _goes_on(self, closing: str) -> bool:
        """Return whether the definition does: a line may begin with `|`."""
        token = self._peek()
        if token.kind == "newline":
            return self._peek(1).text == "|"
        return token.kind != "end" and token.text != closing

    def _rule(self, scope: str) -> None:
        token = self._take()
        name = token.text.lstrip("!?")
        while self._take().text != ":":
            pass
        symbol = self._symbols[scope + name] = _Symbol(name, token.start)
        self._alternatives(symbol, scope, "}" if scope else "")

    def _alternatives(self, symbol: _Symbol, scope: str, closing: str) -> None:
        uses: _Uses = []
        symbol.alternatives.append(uses)
        while self._goes_on(closing):
            token = self._peek()
            match token.kind, token.text:
                case "newline", _:
                    self._take()
                case _, "|":
                    self._take()
                    uses = []
                    symbol.alternatives.append(uses)
                case _, "&":
                    self._take()
                case _, "->":
                    self._take()
                    self._take()
                case "keyword", "%if":
                    self._take()
                    self._skip_call()
                case _:
                    optional = token.text == "["
                    used = self._atom(symbol, scope)
                    required = self._least() > 0 and not optional
                    if used is not None:
                        uses.append((used, required))

    def _skip_call(self) -> None:
        """Skip a name, and its arguments in brackets."""
        self._take()
        if self._peek().text != "(":
            return
        depth = 0
        while True:
            text = self._take().text
            depth += (text == "(") - (text == ")")
            if not depth:
                return

    def _least(self) -> int:
        """Read how often the atom before may stand. Return the fewest times."""
        token = self._peek()
        match token.kind, token.text, self._peek(1):
            case "mark", "?" | "*" | "+", _:
                self._take()
                return int(token.text == "+")
            case "mark", "~", _Token(kind="number", text=number):
                self._take()
                self._take()
                if self._peek().text == "..":
                    self._take()
                    self._take()
                return int(number)
            case "mark", "{", _Token(text=number):
                while self._take().text != "}":
                    pass
                return 0 if number == "," else int(number)
            case _:
                return 1

    def _atom(self, owner: _Symbol, scope: str) -> str | None:
        """Read an atom. Return its symbol, or None if some text always fits it."""
        token = self._take()
        match token.kind, token.text:
            case "mark", "(" | "[" as bracket:
                group = self._symbols[f"({token.start}"] = _Symbol(owner.name, token.start)
                closing = ")" if bracket == "(" else "]"
                self._alternatives(group, scope, closing)
                if self._take().text != closing:
                    raise ValueError("a bracket is missing")
                return f"({token.start}"
            case "mark", "~":
                self._atom(owner, scope)
                return self._terminal(token, scope)
            case "string", _:
                if self._peek().text == "..":
                    self._take()
                    self._take()
                return None
            case "opaque", _:
                return None
            case "rule", name:
                if self._peek().text == "::":
                    self._take()
                    self._skip_call()
                return scope + name
            case ("terminal" | "regex", _) | ("json", "%regex"):
                return self._terminal(token, scope)
            case "json", "%json":
                if (endless := endless_reference(token.value)) is None:
                    return None
                at = ".".join(("%json", *endless))
                why = "leads back to itself without an end, so that no value fits it"
                self._symbols[f"({token.start}"] = _Symbol(at, token.start, why=why)
                return f"({token.start}"
            case "keyword", "%lark":
                inner = f"{token.start}:"
                self._take()
                self._grammar_of(inner, "}")
                self._take()
                return f"{inner}start"
            case _:
                raise ValueError(f"{token.text!r} is not expected there")

    def _terminal(self, first: _Token, scope: str) -> str:
        """Note the terminal that ends here. Return its symbol."""
        source = self._grammar[first.start : self._tokens[self._at - 1].end]
        name = f"{scope} {source}"
        self._terminals.setdefault(name, _Terminal(scope, source, first.start))
        return name

    def too_deep(self) -> Unfit | None:
        """Return the rule at which the library's stack would be too deep, or None."""
        if not self._is_read:
            most = self._grammar.count(":") > MAX_DEPTH
            return Unfit("the grammar", 1, "cannot be read, and has too many rules") if most else None
        seen = set[str]()
        todo = [("start", 1)]
        while todo:
            name, depth = todo.pop()
            if name in seen or (symbol := self._symbols.get(name)) is None:
                continue
            if depth > MAX_DEPTH:
                return self._of(symbol, f"is more than {MAX_DEPTH} rules and groups deep")
            seen.add(name)
            todo += ((used, depth + 1) for used in _inside(symbol))
        return None

    def unfit(self, is_empty: Callable[[str], bool]) -> Unfit | None:
        """Return what can be reached and has no end, or None. `is_empty`: whether no text fits a grammar, as
        far as the library sees it at once."""
        if not self._is_read:
            return None
        reached = self._reached()
        empty = self._empty(reached, is_empty)
        ending = self._ending(reached, empty)
        for name in reached:
            if name in self._symbols and name not in ending:
                return self._cause(name, ending)
            if name == empty:
                return self._cause(name, ending)
        return None

    def _reached(self) -> dict[str, None]:
        """Return the symbols that an answer may come to, and that are defined."""
        found = dict[str, None]()
        todo = ["start"]
        while todo:
            name = todo.pop()
            if name in found or not (name in self._symbols or name in self._terminals):
                continue
            found[name] = None
            if (symbol := self._symbols.get(name)) is not None:
                todo += _inside(symbol)
        return found

    def _empty(self, reached: Iterable[str], is_empty: Callable[[str], bool]) -> str | None:
        """Return a terminal that no text fits, or None. One after the other they are one terminal, which no
        text fits if one of them is so."""
        scopes: defaultdict[str, list[str]] = defaultdict(list)
        for name in reached:
            if name in self._terminals:
                scopes[self._terminals[name].scope].append(name)

        def are_empty(scope: str, names: list[str]) -> bool:
            every = " ".join(f"({self._terminals[name].name})" for name in names)
            lines = [*self._definitions[scope], f"start: {_ALL}", f"{_ALL}: {every}"]
            return is_empty("\n".join(lines))

        for scope, names in scopes.items():
            if are_empty(scope, names):
                while len(names) > 1:
                    half = len(names) // 2
                    names = names[:half] if are_empty(scope, names[:half]) else names[half:]
                return names[0]
        return None

    def _ending(self, reached: Iterable[str], empty: str | None) -> set[str]:
        """Return the symbols that some finite text fits: the least solution. What is not defined ends, as the
        library says what it is."""
        ending = set[str]()
        waiting: defaultdict[str, list[list[Any]]] = defaultdict(list)
        """By symbol, alternatives that need it: the symbol that they are of, and how many they need still."""
        todo = list[str]()
        for name in reached:
            if name in self._terminals:
                todo += [] if name == empty else [name]
                continue
            for uses in self._symbols[name].alternatives:
                needed = {used for used, required in uses if required and self._is_known(used)}
                alternative: list[Any] = [name, len(needed)]
                for used in needed:
                    waiting[used].append(alternative)
                todo += [] if needed else [name]
        while todo:
            if (name := todo.pop()) in ending:
                continue
            ending.add(name)
            for alternative in waiting[name]:
                alternative[1] -= 1
                if not alternative[1]:
                    todo.append(alternative[0])
        return ending

    def _is_known(self, name: str) -> bool:
        return name in self._symbols or name in self._terminals

    def _cause(self, name: str, ending: set[str]) -> Unfit:
        """Return what `name` has no end for: what it needs, down to a terminal or the first repetition."""
        seen = set[str]()
        while name not in seen and name in self._symbols:
            seen.add(name)
            uses = next(iter(self._symbols[name].alternatives), [])
            needs = (used for used, required in uses if required and used not in ending)
            name = next((used for used in needs if self._is_known(used)), name)
        if (terminal := self._terminals.get(name)) is not None:
            return self._of(terminal, "fits no text")
        symbol = self._symbols[name]
        return self._of(symbol, symbol.why)

    def _of(self, what: _Symbol | _Terminal, why: str) -> Unfit:
        return Unfit(what.name, self._grammar.count("\n", 0, what.start) + 1, why)


def _inside(symbol: _Symbol) -> list[str]:
    """Return what it names, the last first."""
    return [used for uses in reversed(symbol.alternatives) for used, _ in reversed(uses)]


_ALL = "EVERY_TERMINAL"
