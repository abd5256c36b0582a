"""Tools, questions that need one, their results, and answers from those."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Final

from scheduler.models.training import words
from scheduler.models.training.turns import ToolCall, Turn, any_word, code, letters, number, sentence


@dataclass(frozen=True, slots=True)
class Offer:
    """One tool: what the model is shown of it, and what was needed to ask for it."""

    verb: str
    noun: str
    arguments: tuple[tuple[str, str], ...]
    """Name and JSON type of each."""
    definition: dict[str, Any]

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.noun}"


KNOWN: Final[tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]] = (
    (
        "get",
        "weather",
        ("city",),
        (
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "Weather in {city}, please.",
            "What is the weather in {city} today?",
            "Tell me the weather in {city}.",
        ),
    ),
    (
        "get",
        "time",
        ("city",),
        ("What time is it in {city}?", "Tell me the time in {city}.", "What is the time in {city}?"),
    ),
    (
        "get",
        "price",
        ("product",),
        ("What is the price of {product}?", "How much is {product}?", "Tell me the price of {product}."),
    ),
    (
        "get",
        "weather",
        ("location",),
        (
            "What is the weather in {location}?",
            "How is the weather in {location}?",
            "Tell me the weather in {location}.",
        ),
    ),
    (
        "get",
        "weather",
        ("city", "unit"),
        ("What is the weather in {city} in {unit}?", "Tell me the weather in {city} in {unit}."),
    ),
    (
        "send",
        "message",
        ("name", "text"),
        ("Send {name} the message {text}.", "Send a message to {name}: {text}", "Tell {name}: {text}"),
    ),
    (
        "book",
        "room",
        ("city", "day"),
        ("Book a room in {city} for day {day}.", "I need a room in {city} on day {day}."),
    ),
    (
        "search",
        "news",
        ("query",),
        ("Search the news for {query}.", "Find news about {query}.", "What is new about {query}?"),
    ),
    (
        "read",
        "file",
        ("path",),
        ("Read the file {path}.", "What is in the file {path}?", "Open {path} and read it."),
    ),
    ("add", "numbers", ("a", "b"), ("Add {a} and {b} with the tool.", "Use the tool to add {a} and {b}.")),
)
"""Verb, noun, arguments and ways of asking, for the tools that everybody writes first."""

_INTEGERS: Final = {
    "count",
    "amount",
    "limit",
    "year",
    "month",
    "hour",
    "day",
    "a",
    "b",
    "level",
    "age",
    "size",
}


def definition(
    name: str, description: str, arguments: tuple[tuple[str, str], ...], rng: random.Random
) -> dict[str, Any]:
    """Return the form that OpenAI's clients send, with more or less of what a schema may contain."""
    properties: dict[str, dict[str, Any]] = {argument: {"type": type} for argument, type in arguments}
    if rng.random() < 0.2:
        for argument, schema in properties.items():
            schema["description"] = f"The {argument}"
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.7:
        parameters["required"] = [argument for argument, _ in arguments]
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def offer(verb: str, noun: str, arguments: tuple[str, ...], rng: random.Random) -> Offer:
    typed = tuple(
        (argument, "integer" if argument in _INTEGERS and rng.random() < 0.8 else "string")
        for argument in arguments
    )
    shapes = (
        "",
        f"{verb.capitalize()} the {noun}",
        f"{verb.capitalize()} the {noun} of a {arguments[0]}",
        f"{verb.capitalize()} a {noun}.",
        f"The {noun}",
        sentence(rng),
    )
    return Offer(verb, noun, typed, definition(f"{verb}_{noun}", rng.choice(shapes), typed, rng))


def offers(rng: random.Random, count: int) -> list[tuple[Offer, tuple[str, ...]]]:
    """Tools of different names, each with the questions that it has of its own, if any."""
    chosen: dict[str, tuple[Offer, tuple[str, ...]]] = {}
    while len(chosen) < count:
        if rng.random() < 0.3:
            verb, noun, arguments, asks = rng.choice(KNOWN)
            asks = asks if rng.random() < 0.85 else ()
        else:
            verb, noun = rng.choice(words.TOOL_VERBS), rng.choice(words.TOOL_NOUNS)
            asks = ()
            arguments = tuple(rng.sample(words.ARGUMENTS, rng.choice((1, 1, 2, 2, 3))))
        chosen.setdefault(f"{verb}_{noun}", (offer(verb, noun, arguments, rng), asks))
    return list(chosen.values())


def argument(name: str, type: str, rng: random.Random) -> str | int:
    if type == "integer":
        return number(rng)
    match name:
        case "city" | "location" | "place" | "target" | "source":
            return rng.choice(words.CITIES) if rng.random() < 0.7 else letters(rng).capitalize()
        case "name" | "user":
            return rng.choice(words.NAMES) if rng.random() < 0.7 else letters(rng).capitalize()
        case "unit":
            return rng.choice(words.UNITS)
        case "language":
            return rng.choice(words.LANGUAGES)
        case "path":
            return f"{any_word(rng)}/{any_word(rng)}.{rng.choice(('txt', 'py', 'md'))}"
        case "text" | "query" | "title" | "body" | "subject":
            return " ".join(any_word(rng) for _ in range(rng.randint(1, 4)))
        case "id" | "key" | "code" | "symbol" | "tag" | "label" | "number":
            return code(rng)
        case _:
            return any_word(rng) if rng.random() < 0.7 else code(rng)


def asked_with(tool: Offer, values: dict[str, Any], asks: tuple[str, ...], rng: random.Random) -> str:
    if asks:
        return rng.choice(asks).format(**values)
    listed = " and ".join(f"{name} {value}" for name, value in values.items())
    first = next(iter(values.values()))
    shapes = [
        f"{tool.verb.capitalize()} the {tool.noun} with {listed}.",
        f"Please {tool.verb} the {tool.noun} for {listed}.",
        f"Use {tool.name} with {listed}.",
        f"Call {tool.name} for {listed}.",
        f"I want to {tool.verb} the {tool.noun}: {listed}.",
    ]
    if len(values) == 1:
        shapes += [
            f"{tool.verb.capitalize()} the {tool.noun} of {first}.",
            f"Please {tool.verb} the {tool.noun} for {first}.",
        ]
        if tool.verb in ("get", "find", "check", "look", "fetch"):
            shapes += [f"What is the {tool.noun} of {first}?"] * 2
    return rng.choice(shapes)


def result(tool: Offer, rng: random.Random) -> tuple[str, str]:
    """Return what a tool returns, and the sentence that says so: fields of an object one by one, text as it
    is."""
    if rng.random() < 0.5:
        pairs: dict[str, Any] = {}
        for key in rng.sample(
            (tool.noun, *words.ARGUMENTS[-30:], *words.TOOL_NOUNS[:12]), rng.choice((1, 1, 2))
        ):
            pairs[key] = rng.choice((number(rng), any_word(rng), code(rng), rng.choice(words.SKY)))
        said = " and ".join(f"the {key} is {value}" for key, value in pairs.items())
        return json.dumps(pairs), said[0].upper() + said[1:] + "."
    texts = (
        f"{number(rng, 2)} degrees, {rng.choice(words.SKY)}",
        rng.choice(words.SKY),
        str(number(rng, 4)),
        code(rng),
        f"{number(rng, 2)}:{rng.randint(10, 59)}",
        f"{number(rng)} {rng.choice(words.UNITS)}",
        any_word(rng),
        " ".join(any_word(rng) for _ in range(rng.randint(2, 5))),
        "done",
        "sent",
        f"saved as {code(rng)}",
    )
    text = rng.choice(texts)
    return text, f"The result is: {text}."


def use(tool: Offer, asks: tuple[str, ...], rng: random.Random) -> list[Turn]:
    """A question, the call, the tool's result and the answer."""
    values = {name: argument(name, type, rng) for name, type in tool.arguments}
    returned, said = result(tool, rng)
    call = ToolCall(tool.name, values)
    question = asked_with(tool, values, asks, rng)
    if rng.random() < 0.1:
        question = f"{sentence(rng)} {question}"
    return [
        Turn(question, call=call, thought=f"I call {tool.name}.", graded="tool call"),
        Turn(returned, said, thought="I have the result.", from_tool=True, graded="tool result"),
    ]
