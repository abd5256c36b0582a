"""Facts in the prompts, so that answers can be checked.

A layer states facts about numbered things of one kind, each with a code that only the prompt contains. An
answer for another agent, or from a damaged cache, has the wrong code. Facts are drawn from (salt, key), as
the words around them are.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from typing import Final

TOKENS: Final = 16
"""The approximate tokens of one stated fact."""


@dataclass(frozen=True, slots=True)
class Fact:
    """The code of one thing."""

    thing: str
    code: str

    @property
    def stated(self) -> str:
        return f"The code of {self.thing} is {self.code}."

    @property
    def question(self) -> str:
        return f"What is the code of {self.thing}?"


def drawn(kind: str, first: int, count: int, salt: str, *key: object) -> tuple[Fact, ...]:
    """Return `count` facts, at most 100, about things of this kind, with numbers from `first` to `first` +
    99."""
    rng = random.Random("/".join(map(str, (salt, "facts", kind, *key))))
    numbers = rng.sample(range(first, first + 100), count)
    return tuple(Fact(f"{kind} {number}", _code(rng)) for number in numbers)


def among(words: str, facts: tuple[Fact, ...]) -> str:
    """Spread the facts in order and evenly over the text; return only facts if there is no text."""
    filler = words.split(" ") if words else []
    stretch = -(-len(filler) // (len(facts) + 1)) or 1
    parts: list[str] = []
    for number, fact in enumerate(facts):
        parts += [*filler[number * stretch : (number + 1) * stretch], fact.stated]
    return " ".join([*parts, *filler[len(facts) * stretch :]])


def _code(rng: random.Random) -> str:
    first, second = rng.choices(string.ascii_uppercase, k=2)
    return f"{first}{rng.randrange(10)}{second}-{rng.randrange(10)}"
