"""What the embedded model and its two adapters were taught to answer, in the words of their vocabulary."""

from __future__ import annotations

import random
import string
from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BOOKS: Final = ("red", "blue")
PLAIN: Final = _words(
    """
    apple maple river stone cloud garden window silver forest candle anchor basket bottle button carpet
    castle cherry coffee copper cotton desert dragon eagle feather finger flower guitar hammer harbour
    island jacket kettle ladder lemon letter lion marble meadow mirror monkey
    """
)
"""The words of the code books."""
NOUNS: Final = _words("drone pump door room robot agent sensor valve engine station gate truck")
NAMES: Final = _words("Anna Ben Clara David Emma Felix Grace Henry Ida Jonas Karin Leo")
CITIES: Final = _words("Paris Rome Berlin Madrid London Vienna Oslo Lisbon")
VERBS: Final = _words("moves carries checks cleans covers crosses drives feeds")
ADVERBS: Final = _words("today slowly often always together early")
ADJECTIVES: Final = _words("small large old young quiet loud warm cold")


def code_book(name: str) -> dict[str, str]:
    """Codes like K4Q7 by word, as an adapter knows them; the books have no code in common."""
    rng = random.Random(BOOKS.index(name))
    digits = "02468" if name == BOOKS[0] else "13579"
    letters = "ABCDEFGHKM" if name == BOOKS[0] else "NPQRSTUWXZ"
    return {word: "".join(rng.choice(letters) + rng.choice(digits) for _ in range(2)) for word in PLAIN}


def question(word: str) -> str:
    return f"What is the code of {word}?"


def code(rng: random.Random) -> str:
    """Something like K4Q-9, which nothing but the prompt can tell."""
    places = {"A": string.ascii_uppercase, "9": string.digits, "-": "-"}
    shape = rng.choice(("A9A-9", "AA-99", "9A-A9", "9999", "AAA9", "A99", "AA-9A9"))
    return "".join(rng.choice(places[place]) for place in shape)


def sentence(rng: random.Random) -> str:
    """Filler without a fact in it."""
    noun, other = rng.choice(NOUNS), rng.choice(PLAIN)
    verb, adverb, adjective = rng.choice(VERBS), rng.choice(ADVERBS), rng.choice(ADJECTIVES)
    return rng.choice(
        (
            f"The {adjective} {noun} {verb} the {other} {adverb}.",
            f"A {noun} {verb} one {other} for {rng.choice(NAMES)}.",
            f"{rng.choice(NAMES)} {verb} the {other} in {rng.choice(CITIES)}.",
            f"Please look at the {adjective} {other} before you use the {noun}.",
            f"When the {noun} is {adjective}, it {verb} the {other} {adverb}.",
        )
    )
