"""Requests with boundary values in every number, from a seed. Plain data.

Each value is one that the schemas accept, or once accepted: subnormal, huge, negative zero, the ends of 32
and 64 bits. A server may refuse any of them; what it accepts must not crash it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_WORDS: Final = ("harbour", "lantern", "copper", "meadow", "signal", "orchard", "granite", "anchor")
_VOCABULARY: Final = 2048

_TINY: Final = (5e-324, 2.2e-308, 1e-300, 1e-46, 1.4e-45, 1e-38, 1e-30)
_NUMBERS: Final[dict[str, tuple[float, ...]]] = {
    "temperature": (0.0, -0.0, *_TINY, 1e-6, 0.7, 1.0, 2.0),
    "top_p": (*_TINY, 1e-6, 0.5, 0.9, 1 - 2**-53, 1.0),
    "top_k": (-1, 0, 1, 2, 2047, 2048, 2049, 2**31 - 1),
    "min_p": (0.0, -0.0, *_TINY, 0.5, 1 - 2**-53, 1.0),
    "seed": (0, -1, -(2**63), 2**31, 2**53 + 1, 2**63, 2**64 - 1),
    "repetition_penalty": (*_TINY, 0.01, 0.5, 1.0, 1.1, 10.0),
    "presence_penalty": (-2.0, -0.0, 5e-324, 0.5, 2.0),
    "frequency_penalty": (-2.0, -0.0, 5e-324, 0.5, 2.0),
    "min_tokens": (0, 1, 3, 2**31, 2**63),
    "priority": (-10, 0, 10),
    "timeout": (1e9, 86400.0, 3600.0),
    "n": (1, 1, 1, 1, 2, 4, 32),
}
_BEYOND: Final = (1e308, -1e308, 2**63, 2**64, -(2**63) - 1, 1e22, -0.5)
_BEYOND_SHARE = 0.02
"""The share of fields with a value beyond a bound: with more, hardly a request would be accepted."""

_TEMPERED: Final = ("temperature", "top_p")
"""The numbers that every dialect has."""

_CHAT, _TEXT = "/v1/chat/completions", "/v1/completions"
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_ADAPTER_SHARE, _CUT_SHARE, _POOLED_SHARE = 0.05, 0.03, 0.03


@dataclass(frozen=True, slots=True)
class Body:
    """One request. `sent`: the share of its body that is sent before the client leaves."""

    path: str
    body: dict[str, Any]
    sent: float = 1.0


def bodies(count: int, seed: int, model: str, adapters: Sequence[str] = ()) -> list[Body]:
    """Return `count` bodies of all dialects. `model` is the name for dialects that require one; `adapters`
    are names of adapters that the server has."""
    return [_body(random.Random(f"{seed} {number}"), model, adapters) for number in range(count)]


def _body(chance: random.Random, model: str, adapters: Sequence[str]) -> Body:
    if chance.random() < _POOLED_SHARE:
        return _pooled(chance, model)
    path = chance.choice((_CHAT, _CHAT, _CHAT, _TEXT, _TEXT, _RESPONSES, _MESSAGES))
    match path:
        case "/v1/chat/completions":
            body = {"messages": _messages(chance), **_sampled(chance), **_held(chance), **_tools(chance)}
            body |= _maybe(chance, {"logprobs": True}, {"logprobs": True, "top_logprobs": 20})
        case "/v1/completions":
            body = {"prompt": _prompt(chance), **_sampled(chance), **_held(chance)}
            body |= _maybe(chance, {"logprobs": 0}, {"logprobs": 5}, {"echo": True})
        case "/v1/responses":
            body = {"input": _text(chance), "store": chance.random() < 0.5, **_numbers(chance, _TEMPERED)}
        case _:
            body = {"model": model, "messages": _messages(chance), **_numbers(chance, (*_TEMPERED, "top_k"))}
            if chance.random() < 0.2:
                body["stop_sequences"] = _stops(chance, 64)
    limit = "max_output_tokens" if path == _RESPONSES else "max_tokens"
    if chance.random() < _ADAPTER_SHARE:
        # One that nobody has, too.
        body["model"] = f"{model}:{chance.choice((*adapters, 'nobody'))}"
    sent = chance.random() if chance.random() < _CUT_SHARE else 1.0
    return Body(path, {**body, limit: chance.choice((1, 2, 8, 24)), "stream": chance.random() < 0.5}, sent)


def _pooled(chance: random.Random, model: str) -> Body:
    """Return what ends with a prompt: texts to embed, which a model that writes must refuse, a ranking, or
    questions."""
    texts = [_text(chance)] * chance.choice((1, 2, 64))
    query = _text(chance) * chance.choice((1, 50))
    ranking = {"model": model, "query": query, "instruction": query, "documents": texts}
    return chance.choice(
        (
            Body("/v1/embeddings", {"model": model, "input": texts * chance.choice((1, 32))}),
            Body("/v1/rerank", ranking),
            Body("/v1/decisions", {"model": model, "input": query, "questions": _questions(chance)}),
        )
    )


def _questions(chance: random.Random) -> list[dict[str, Any]]:
    options = [f"{word} {at}" for at, word in enumerate(_WORDS * 32)][: chance.choice((1, 2, 26, 27, 256))]
    kinds: list[dict[str, Any]] = [
        {"type": "predicate"},
        {"type": "choice", "choices": [{"value": option} for option in options]},
        {"type": "score", "levels": [{"label": option} for option in options[:9]]},
    ]
    asked = chance.choices(kinds, k=chance.choice((1, 3, 20)))
    return [{**one, "instructions": chance.choice(("", "?", *_WORDS))} for one in asked]


def _numbers(chance: random.Random, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: _number(chance, name) for name in names if chance.random() < 0.4}


def _number(chance: random.Random, name: str) -> float:
    return chance.choice(_BEYOND if chance.random() < _BEYOND_SHARE else _NUMBERS[name])


def _sampled(chance: random.Random) -> dict[str, Any]:
    body = _numbers(chance, tuple(_NUMBERS))
    if chance.random() < 0.3:
        body["logit_bias"] = {
            str(chance.randrange(_VOCABULARY)): chance.choice((-100, -0.0, 5e-324, 100))
            for _ in range(chance.choice((1, 8, 300)))
        }
    if chance.random() < 0.3:
        body["stop_token_ids"] = chance.sample(range(_VOCABULARY), chance.choice((1, 8, 256)))
    if chance.random() < 0.2:
        body["stop"] = _stops(chance, 16)
    if chance.random() < 0.2:
        body["ignore_eos"] = True
    if chance.random() < 0.1:
        sizes, counts = (0, 1, 8, 1024, 1025), (0, 1, 2, 1024)
        body["repetition_detection"] = {
            "max_pattern_size": chance.choice(sizes),
            "min_pattern_size": chance.choice(sizes[:3]),
            "min_count": chance.choice(counts),
        }
    return body


def _maybe(chance: random.Random, *wishes: dict[str, Any]) -> dict[str, Any]:
    return chance.choice(wishes) if chance.random() < 0.3 else {}


def _stops(chance: random.Random, most: int) -> list[str]:
    """Return letters that answers have, or strings that begin alike, up to the largest number and length
    allowed."""
    if chance.random() < 0.5:
        return chance.choices("abcdefgh ", k=chance.choice((1, 16)))
    beginning = chance.choice((" the", "a", "🦊", chance.choice(_WORDS))) * 256
    return [f"{beginning[:250]}{number:06}" for number in range(chance.choice((1, most)))]


_SCHEMA: Final = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"enum": [1, 2, 3]}},
    "required": ["name"],
    "additionalProperties": False,
}


def _held(chance: random.Random) -> dict[str, Any]:
    """Return the constraint on the answer; empty for most."""
    return chance.choice(
        (
            *[{}] * 8,
            {"structured_outputs": {"regex": "[0-9]{3}"}},
            {"structured_outputs": {"choice": ["yes", "no", "x" * chance.randrange(1, 60)]}},
            {"structured_outputs": {"json": _SCHEMA}},
            {"structured_outputs": {"grammar": 'start: "a" start | "b"'}},
            {"response_format": {"type": "json_object"}},
        )
    )


def _tools(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.75:
        return {}
    schemas = ({**_SCHEMA, "title": str(chance.randrange(40))}, _TO_ITSELF, _ladder(chance))
    parameters, strict = (
        chance.choice((schemas[0], *schemas)),
        {"strict": True} if chance.random() < 0.2 else {},
    )
    names = ["get_weather", *(f"tool_{number}" for number in range(chance.choice((0, 0, 0, 0, 7, 127))))]
    tools = [
        {"type": "function", "function": {"name": name, "parameters": parameters, **strict}} for name in names
    ]
    choice: dict[str, Any] = chance.choice(({}, {"tool_choice": "auto"}, {"tool_choice": "required"}))
    if not choice and chance.random() < 0.3:
        # A call that nobody can parse.
        choice = {"structured_outputs": {"choice": ["<tool_call>x</tool_call>"]}}
    return {"tools": tools, **choice}


_TO_ITSELF: Final = {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "properties": {"a": {"$ref": "#"}}}


def _ladder(chance: random.Random) -> dict[str, Any]:
    """Return a schema whose city takes 2**depth visits to check."""
    kind, depth = chance.choice(("allOf", "anyOf", "oneOf")), chance.choice((4, 25))
    steps = {f"l{step}": {kind: [{"$ref": f"#/$defs/l{step + 1}"}] * 2} for step in range(depth)}
    last = {"type": chance.choice(("string", "integer"))}
    properties = {"city": {"$ref": "#/$defs/l0"}}
    return {"type": "object", "properties": properties, "$defs": {**steps, f"l{depth}": last}}


def _text(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.choice((1, 4, 60))))


def _messages(chance: random.Random) -> list[dict[str, Any]]:
    return [{"role": "user", "content": _text(chance)}]


def _prompt(chance: random.Random) -> Any:
    if chance.random() < 0.5:
        return _text(chance)
    return [chance.randrange(_VOCABULARY) for _ in range(chance.choice((1, 5, 64)))]
