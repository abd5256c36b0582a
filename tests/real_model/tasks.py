"""What a small model can do and a fault of ours would spoil: questions with short known answers, schemas and
tools whose valid texts are nearly as short as the shortest one."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass
from typing import Any, Final

CAPITALS: Final = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Germany": "Berlin",
    "England": "London",
    "Japan": "Tokyo",
    "Russia": "Moscow",
    "Egypt": "Cairo",
    "Greece": "Athens",
    "Portugal": "Lisbon",
    "Poland": "Warsaw",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Sweden": "Stockholm",
    "Norway": "Oslo",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Hungary": "Budapest",
    "Cuba": "Havana",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "India": "New Delhi",
    "China": "Beijing",
    "South Korea": "Seoul",
    "Thailand": "Bangkok",
    "Kenya": "Nairobi",
    "Canada": "Ottawa",
    "Australia": "Canberra",
    "Argentina": "Buenos Aires",
    "Peru": "Lima",
}
OTHERS: Final = {
    "Which planet is known as the Red Planet?": "Mars",
    "Which is the largest planet in our solar system?": "Jupiter",
    "Which gas do plants take in for photosynthesis?": "carbon dioxide",
    "Which gas do humans need to breathe to live?": "oxygen",
    "What is the chemical symbol for gold?": "Au",
    "What is the chemical formula of water?": "H2O",
    "Who wrote Romeo and Juliet?": "Shakespeare",
    "Who painted the Mona Lisa?": "Leonardo",
    "Who was the first president of the United States?": "Washington",
    "Who developed the theory of relativity?": "Einstein",
    "What is the largest ocean on Earth?": "Pacific",
    "What is the tallest mountain on Earth?": "Everest",
    "Which animal is known as the king of the jungle?": "lion",
    "How many days are in a week?": "seven|7",
    "How many months are in a year?": "twelve|12",
    "How many hours are in a day?": "24",
    "How many legs does a spider have?": "eight|8",
    "What is the freezing point of water in degrees Celsius?": "0",
    "What is the color of the sky on a clear day?": "blue",
    "What is the opposite of hot?": "cold",
    "What is the opposite of up?": "down",
    "What do bees make?": "honey",
    "Which star is at the center of our solar system?": "sun",
    "Which language is spoken in Brazil?": "Portuguese",
    "On which continent is Egypt?": "Africa",
    "What is 2 plus 2?": "4|four",
    "What is the first letter of the English alphabet?": "A",
    "Which season comes after spring?": "summer",
    "Which day comes after Monday?": "Tuesday",
    "What is frozen water called?": "ice",
}
QUESTIONS: Final = {f"What is the capital of {land}?": city for land, city in CAPITALS.items()} | OTHERS


def is_right(answer: str, expected: str) -> bool:
    """Whether one of the expected words, which stand between bars, begins a word of the answer."""
    return any(re.search(rf"\b{re.escape(one)}", answer, re.IGNORECASE) for one in expected.split("|"))


@dataclass(frozen=True, slots=True)
class Form:
    """A question, what its answer must fit, and the shortest text that does."""

    question: str
    schema: dict[str, Any]
    shortest: str


_THINGS = ("city", "river", "book", "car", "dog", "song", "game", "train", "recipe", "planet")
_FIELDS: Final[tuple[tuple[str, dict[str, Any], Any], ...]] = (
    ("color", {"type": "string", "enum": ["red", "green", "blue"]}, "red"),
    ("size", {"type": "string", "enum": ["small", "large"]}, "small"),
    ("language", {"type": "string", "enum": ["English", "French", "Spanish"]}, "English"),
    ("is_new", {"type": "boolean"}, True),
    ("has_owner", {"type": "boolean"}, True),
    ("rating", {"type": "integer", "minimum": 1, "maximum": 5}, 1),
    ("year", {"type": "integer", "minimum": 1900, "maximum": 2030}, 1900),
    ("code", {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}, "AB12"),
    ("kind", {"const": "thing"}, "thing"),
    ("note", {"type": ["string", "null"], "maxLength": 0}, None),
    ("tags", {"type": "array", "items": {"enum": ["old", "rare"]}, "minItems": 1, "maxItems": 2}, ["old"]),
    ("day", {"type": "string", "enum": ["Monday", "Sunday"]}, "Sunday"),
    ("flags", {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, [True, True]),
)


def form(seed: int) -> Form:
    """Two to five fields, in every third form one of them an object of its own."""
    rng = random.Random(seed)
    thing = rng.choice(_THINGS)
    schema, shortest = _object(rng, rng.randrange(2, 6))
    if seed % 3 == 0:
        inner, least = _object(rng, 2)
        schema["properties"]["details"], shortest["details"] = inner, least
        schema["required"].append("details")
    question = f"Describe a {thing} in JSON with the fields {', '.join(schema['required'])}."
    return Form(question, schema, json.dumps(shortest, separators=(",", ":")))


def _object(rng: random.Random, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = rng.sample(_FIELDS, count)
    schema = {
        "type": "object",
        "properties": {name: one for name, one, _ in fields},
        "required": [name for name, _, _ in fields],
        "additionalProperties": False,
    }
    return schema, {name: least for name, _, least in fields}
