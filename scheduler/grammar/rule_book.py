"""The rules and terminals of one grammar, each written once, however many tools ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scheduler.grammar.vocabulary import GrammarVocabulary, quoted

NOTHING = '""'
"""The rule of an empty text."""


class RuleBook:
    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary
        self._names: dict[str, str] = {}
        """Names of rules by their content."""
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        return self._lines

    def literal(self, text: str) -> str:
        return self.vocabulary.literal(text) or NOTHING

    def add(self, line: str) -> None:
        """Add a rule that has a name of its own."""
        self._lines.append(line)

    def terminal(self, pattern: str) -> str:
        """Return the name of a terminal, whose pattern is in Lark's syntax."""
        return self._named("T", pattern, pattern)

    def rule(self, body: str) -> str:
        return self._named("r", body, body)

    def recursive(self, key: str, body: Callable[[], str]) -> str:
        """Return the name of the rule for `key`, whose body may refer to the same key."""
        if key in self._names:
            return self._names[key]
        name = self._names[key] = f"v{len(self._lines)}_{len(self._names)}"
        try:
            self._lines.append(f"{name}: {body()}")
        except Exception:
            # Rules that were written inside may name it: let it match no text.
            self._lines.append(f"{name}: {name}")
            del self._names[key]
            raise
        return name

    def ended_by(self, pattern: str, closing: str) -> str:
        """Return the rule of a text that matches `pattern`, with `closing` after it. The part of `closing`
        before its first special token must be in one terminal with the text: the longest terminal wins, and
        would swallow it."""
        plain, rest = self.vocabulary.split_special(closing)
        terminal = self.terminal(f"{self.terminal(pattern)} {quoted(plain)}" if plain else pattern)
        return f"{terminal} {self.vocabulary.literal(rest)}".rstrip()

    def _named(self, prefix: str, kind: str, body: str) -> str:
        key = f"{prefix} {kind}"
        if key not in self._names:
            self._names[key] = f"{prefix}{len(self._names)}"
            self._lines.append(f"{self._names[key]}: {body}")
        return self._names[key]


def one_of(alternatives: Iterable[str]) -> str:
    """Return the alternatives as one rule, in parentheses where there are several."""
    found: Sequence[str] = list(dict.fromkeys(alternatives))
    return found[0] if len(found) == 1 else "(" + " | ".join(found) + ")"
