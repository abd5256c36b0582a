"""The rules of a client's grammar: one that no finite text fits, and how deep they lead.

`x: "c" x` goes on for ever, and a terminal may be an intersection of which nothing is left. The grammar
library finds neither before an answer reaches it, and the answer then never ends, or fails. It compiles a
rule inside of the first that names it, so a chain of 20,000 rules is deeper than its stack. What cannot
be read here is left to the library.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scheduler.grammar.endless import endless_reference
from scheduler.grammar.lark_grammar import Alternatives, Atom, Grammar, Unreadable, is_terminal, read_grammar


@dataclass(frozen=True, slots=True)
class Unfit:
    """A rule, a terminal or a JSON schema that no answer can be held to."""

    name: str
    line: int
    """From 1."""
    why: str


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
        self._symbols: dict[str, _Symbol] = {}
        self._terminals: dict[str, _Terminal] = {}
        self._sources: dict[str, list[str]] = {}
        """What a terminal of each grammar may be made of."""
        try:
            self._add_grammar(read_grammar(grammar), "")
            self._is_read = True
        except (Unreadable, RecursionError):
            self._is_read = False  # The library says what is wrong with it.

    def _add_grammar(self, grammar: Grammar, scope: str) -> None:
        self._sources[scope] = grammar.sources
        for name, rule in grammar.definitions.items():
            if not is_terminal(name):
                self._add(scope + name, _Symbol(name, rule.start), rule.alternatives, scope)

    def _add(self, key: str, symbol: _Symbol, alternatives: Alternatives, scope: str) -> str:
        self._symbols[key] = symbol
        for atoms in alternatives:
            uses: _Uses = []
            for atom in atoms:
                if (used := self._use(atom, symbol, scope)) is not None:
                    uses.append((used, atom.least > 0 and atom.kind != "optional"))
            symbol.alternatives.append(uses)
        return key

    def _use(self, atom: Atom, owner: _Symbol, scope: str) -> str | None:
        """Return the atom's symbol, or None if some text always fits it."""
        group = f"({atom.start}"
        match atom.kind:
            case "group" | "optional":
                return self._add(group, _Symbol(owner.name, atom.start), atom.alternatives, scope)
            case "name" | "call" if not is_terminal(atom.text):
                return scope + atom.text.partition("::")[0]
            case "name" | "regex" | "not" | "%regex":
                key = f"{scope} {atom.text}"
                self._terminals.setdefault(key, _Terminal(scope, atom.text, atom.start))
                return key
            case "%json" if (endless := endless_reference(atom.value)) is not None:
                at = ".".join(("%json", *endless))
                why = "leads back to itself without an end, so that no value fits it"
                return self._add(group, _Symbol(at, atom.start, why=why), [], scope)
            case "lark":
                self._add_grammar(atom.value, inner := f"{atom.start}:")
                return f"{inner}start"
            case _:
                return None

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
            lines = [*self._sources[scope], f"start: {_ALL}", f"{_ALL}: {every}"]
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
