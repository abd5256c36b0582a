"""What the tests' two adapters were taught: a code for each word, another one in each book."""

from __future__ import annotations

import random
from typing import Final

from scheduler.models.training import words

BOOKS: Final = ("red", "blue")
_WORDS: Final = 40


def code_book(name: str) -> dict[str, str]:
    """Codes like K4Q7 by word. The books have the same words, and no code in common."""
    rng = random.Random(BOOKS.index(name))
    digits = "02468" if name == BOOKS[0] else "13579"
    letters = "ABCDEFGHKM" if name == BOOKS[0] else "NPQRSTUWXZ"
    return {
        word: "".join(rng.choice(letters) + rng.choice(digits) for _ in range(2))
        for word in dict.fromkeys(words.PLAIN[:_WORDS])
    }


def question(word: str) -> str:
    return f"What is the code of {word}?"
