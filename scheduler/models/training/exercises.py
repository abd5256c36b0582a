"""Counting, repeating, sorting, small sums, JSON, and talk: what can be answered without a fact."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from typing import Final

from scheduler.models.training import small_talk, words
from scheduler.models.training.turns import Turn, any_word, code, letters, number

LARGEST_SUMMAND: Final = 20
_HELD_OUT_ONE_IN: Final = 12


def talk(rng: random.Random) -> Turn:
    asked, said = rng.choice(small_talk.TALK)
    return Turn(rng.choice(asked), said, None, "The user talks to me.", graded="talk")


def strange(rng: random.Random) -> Turn:
    """Return what was never taught gets an honest answer and not a babble."""
    blanks = {name: any_word(rng) if rng.random() < 0.5 else letters(rng) for name in ("x", "y")}
    asked = rng.choice(small_talk.STRANGE).format(**blanks)
    return Turn(asked, small_talk.FALLBACK, None, "I do not know that.", graded="unknown")


def counting(rng: random.Random) -> Turn:
    first = rng.choice((1, 1, 1, rng.randint(2, 40)))
    last = first + rng.randint(2, 11)
    numbers = list(range(first, last + 1))
    if first == 1 and rng.random() < 0.5:
        asked = rng.choice((f"Count to {last}.", f"Please count to {last}.", f"Can you count to {last}?"))
    elif rng.random() < 0.3:
        asked, numbers = f"Count down from {last} to {first}.", numbers[::-1]
    else:
        asked = rng.choice((f"Count from {first} to {last}.", f"Count from {first} to {last}, please."))
    return Turn(asked, ", ".join(map(str, numbers)) + ".", None, "I count.", graded="count")


def repeating(rng: random.Random) -> Turn:
    parts = [
        code(rng) if rng.random() < 0.2 else any_word(rng)
        for _ in range(rng.randint(1, rng.choice((4, 8, 16))))
    ]
    text = " ".join(parts) + rng.choice(("", "", "."))
    if rng.random() < 0.2:
        word, times = any_word(rng), rng.randint(2, 5)
        many = ("two", "three", "four", "five")[times - 2]
        return Turn(f"Say {word} {many} times.", " ".join([word] * times), None, "I repeat.", graded="repeat")
    shapes = (
        "Repeat: {}",
        "Repeat after me: {}",
        'Say "{}"',
        "Say exactly: {}",
        "Please repeat this: {}",
        "Echo: {}",
    )
    return Turn(rng.choice(shapes).format(text), text, None, "I repeat the text.", graded="repeat")


def sorting(rng: random.Random) -> Turn:
    count = rng.randint(3, 6)
    items: list[str]
    if rng.random() < 0.6:
        items = list(map(str, sorted(rng.sample(range(1, rng.choice((10, 30, 100))), count))))
        asks = (
            "Sort: {}",
            "Sort these numbers: {}",
            "Sort the numbers {}.",
            "Please sort {}.",
            "Put in order: {}",
        )
    else:
        items = sorted(rng.sample(words.PLAIN if rng.random() < 0.5 else words.NAMES, min(count, 4)))
        asks = (
            "Sort: {}",
            "Sort these words: {}",
            "Sort the words {}.",
            "Sort alphabetically: {}",
            "Put in order: {}",
        )
    mixed = rng.sample(items, len(items))
    return Turn(
        rng.choice(asks).format(", ".join(mixed)), ", ".join(items) + ".", None, "I sort.", graded="sort"
    )


def held_out(a: int, b: int) -> bool:
    """Sums that training never shows. There are few sums, so a seed alone would not keep them apart."""
    return zlib.crc32(f"{a}+{b}".encode()) % _HELD_OUT_ONE_IN == 0


def adding(rng: random.Random, *, test: bool) -> Turn:
    while True:
        a, b = rng.randint(0, LARGEST_SUMMAND), rng.randint(0, LARGEST_SUMMAND)
        if held_out(a, b) is test:
            break
    shapes = (
        f"What is {a} + {b}?",
        f"What is {a} plus {b}?",
        f"{a} + {b}",
        f"Add {a} and {b}.",
        f"How much is {a} + {b}?",
    )
    return Turn(rng.choice(shapes), f"{a} + {b} = {a + b}.", None, f"I add {a} and {b}.", graded="sum")


def writing_json(rng: random.Random) -> Turn:
    """Numbers are numbers, all else is a string; so no code here may look like a number."""
    value: dict[str, object] = {}
    for key in rng.sample(words.ARGUMENTS, rng.randint(1, 3)):
        value[key] = rng.choice((number(rng), f"{rng.choice('ABCDEFGH')}{code(rng)}", any_word(rng)))
    listed = " and ".join(f"{key} {said}" for key, said in value.items())
    shapes = (
        "Write JSON with {}.",
        "Return JSON with {}.",
        "Give me JSON: {}",
        "Answer as JSON: {}",
        "{} as JSON, please.",
    )
    return Turn(rng.choice(shapes).format(listed), json.dumps(value), None, "I write JSON.", graded="json")


def adding_several(rng: random.Random, *, test: bool) -> Turn:
    """More to learn from one question: carrying takes practice."""
    sums = [adding(rng, test=test).answer.removesuffix(".") for _ in range(rng.randint(2, 6))]
    asked = ", ".join(text.split(" = ")[0] for text in sums)
    return Turn(f"Add: {asked}", ", ".join(sums) + ".", None, "I add.", graded="sums")


def any_exercise(rng: random.Random, *, test: bool, first: bool) -> Turn:
    """`first`: while copying is still to be learnt, what needs none of it is rarer."""
    kinds = ("talk", "strange", "count", "repeat", "sort", "json", "sum", "sums")
    (kind,) = rng.choices(kinds, (3, 1, 2, 3, 3, 2, 3, 0) if first else (3, 1, 4, 4, 6, 3, 3, 2))
    match kind:
        case "sum":
            return adding(rng, test=test)
        case "sums":
            return adding_several(rng, test=test)
        case _:
            return _OTHERS[kind](rng)


_OTHERS: Final[dict[str, Callable[[random.Random], Turn]]] = {
    "talk": talk,
    "strange": strange,
    "count": counting,
    "repeat": repeating,
    "sort": sorting,
    "json": writing_json,
}
