"""The questions, from a seed: greedy and sampled, streamed and whole, with tools and without. Plain data."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from loadtests.chaos.saboteur.sitecustomize import POISON_TOKENS

WORDS: Final = ("harbour", "lantern", "copper", "meadow", "signal", "orchard", "granite", "anchor")
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a word up in the harbour's register.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string"}, "page": {"type": "integer"}},
                "required": ["word"],
            },
        },
    }
]
_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"enum": [1, 2, 3]}},
    "required": ["name", "count"],
    "additionalProperties": False,
}
_JSON_FORMAT: Final = {
    "type": "json_schema",
    "json_schema": {"name": "entry", "strict": True, "schema": _SCHEMA},
}


@dataclass(frozen=True, slots=True)
class Question:
    """One request to `/v1/chat/completions`."""

    number: int
    body: dict[str, Any]
    greedy: bool
    poison: bool = False


def questions(count: int, seed: int) -> list[Question]:
    """Return `count` questions of all kinds."""
    return [_question(number, random.Random(f"{seed} {number}")) for number in range(count)]


def poison(number: int) -> Question:
    """Return the request that crashes every engine."""
    messages = [{"role": "user", "content": "the planted poison"}]
    body = {"messages": messages, "max_tokens": POISON_TOKENS, "temperature": 0, "stream": False}
    return Question(number, body, greedy=True, poison=True)


def _question(number: int, chance: random.Random) -> Question:
    shared = " ".join(WORDS[chance.randrange(3) :] * 4)
    own = f"{number} " + " ".join(chance.choices(WORDS, k=chance.choice([2, 20, 120])))
    greedy = chance.random() < 0.5
    streamed = chance.random() < 0.7
    body: dict[str, Any] = {
        "messages": [{"role": "system", "content": shared}, {"role": "user", "content": own}],
        "max_tokens": chance.randint(8, 96),
        "stream": streamed,
        **({"stream_options": {"include_usage": True}} if streamed else {}),
        **({"temperature": 0} if greedy else _sampling(chance)),
    }
    match chance.random():
        case draw if draw < 0.25:
            body["tools"] = _TOOLS
        case draw if draw < 0.4:
            body["response_format"] = _JSON_FORMAT
        case draw if draw < 0.5:
            body["stop"] = [chance.choice("abcdefgh")]
    return Question(number, body, greedy)


def _sampling(chance: random.Random) -> dict[str, Any]:
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3} if chance.random() < 0.3 else {}
    return {"temperature": 0.9, "top_p": 0.95, "seed": chance.randrange(1 << 32), **penalties}
