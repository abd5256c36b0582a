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
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Norway": "Oslo",
    "Hungary": "Budapest",
    "South Korea": "Seoul",
    "Kenya": "Nairobi",
    "Argentina": "Buenos Aires",
    "Peru": "Lima",
}
QUESTIONS: Final = {f"What is the capital of {land}?": city for land, city in CAPITALS.items()}


def is_right(answer: str, expected: str) -> bool:
    """Whether the expected word begins a word of the answer."""
    return bool(re.search(rf"\b{re.escape(expected)}", answer, re.IGNORECASE))


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
