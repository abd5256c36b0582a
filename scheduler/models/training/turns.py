"""What the data is made of: turns of a conversation, each with the question and the expected answer."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scheduler.models.training import words

CODE_SHAPES: Final = (
    "A9A-9",
    "A9A-9",
    "A9A-9",
    "AA-99",
    "9A-A9",
    "9999",
    "AAA9",
    "A9-A9-A9",
    "A99",
    "AA-9A9",
)


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's answer to a user's message, or to a tool's result.

    `thought` is what it thinks when thinking is on. `graded` names the metric that counts it, and with
    `must_say` what of the answer has to be there: all of it, where nothing is named.
    """

    asked: str
    answer: str = ""
    call: ToolCall | None = None
    thought: str = "This is simple."
    from_tool: bool = False
    graded: str = "talk"
    must_say: str = ""


@dataclass(slots=True)
class Conversation:
    """A system prompt, the tools on offer, and turns; thinking is on or off for each answer."""

    system: str
    turns: list[Turn] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)


def code(rng: random.Random) -> str:
    """Something like K4Q-9, which nothing but the prompt can tell."""
    places = {"A": string.ascii_uppercase, "9": string.digits, "-": "-"}
    return "".join(rng.choice(places[place]) for place in rng.choice(CODE_SHAPES))


def number(rng: random.Random, digits: int = 3) -> int:
    """Short numbers are as frequent as long ones."""
    return rng.randrange(10 ** rng.randint(1, digits))


def thing(rng: random.Random) -> str:
    return f"{rng.choice(words.NOUNS)} {number(rng)}"


def letters(rng: random.Random) -> str:
    """A word that is in no vocabulary, so that it must be copied letter by letter."""
    syllables = (
        "".join((rng.choice("bcdfghklmnprstvz"), rng.choice("aeiou"))) for _ in range(rng.randint(2, 3))
    )
    word = "".join(syllables) + rng.choice(("", "n", "s", "r"))
    return word.capitalize() if rng.random() < 0.5 else word


def any_word(rng: random.Random) -> str:
    """Return a word of any kind that arguments and repeated texts are made of."""
    kinds: Sequence[Sequence[str]] = (
        words.PLAIN,
        words.NOUNS,
        words.NAMES,
        words.CITIES,
        words.COLOURS,
        words.ADJECTIVES,
    )
    return letters(rng) if rng.random() < 0.15 else rng.choice(rng.choice(kinds))


def sentence(rng: random.Random) -> str:
    """Filler without a fact in it."""
    noun, other = rng.choice(words.NOUNS), rng.choice(words.PLAIN)
    verb, adverb, adjective = rng.choice(words.VERBS), rng.choice(words.ADVERBS), rng.choice(words.ADJECTIVES)
    shapes = (
        f"The {adjective} {noun} {verb} the {other} {adverb}.",
        f"A {noun} {verb} one {other} for {rng.choice(words.NAMES)}.",
        f"{rng.choice(words.NAMES)} {verb} the {other} in {rng.choice(words.CITIES)}.",
        f"Please look at the {adjective} {other} before you use the {noun}.",
        f"When the {noun} is {adjective}, it {verb} the {other} {adverb}.",
        f"{rng.choice(words.NAMES)} and {rng.choice(words.NAMES)} like the {adjective} {other}.",
        " ".join(rng.choice(words.ALL) for _ in range(rng.randint(3, 16))) + rng.choice((".", "")),
    )
    return rng.choice(shapes)
