"""JSON schemas of every kind that llguidance knows, bounded, so that a random model comes to an end, and the
shortest document that fits one."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = ("a", "b", "name", "größe", "x y", 'q"', "z\\", "n\n", "🦊")


def random_schema(seed: int) -> dict[str, Any]:
    """One schema for one seed; objects at most three deep."""
    generator = random.Random(seed)
    schema = _schema(generator, 3)
    if generator.random() < 0.2:
        schema = {"$ref": "#/$defs/it", "$defs": {"it": schema}}
    return schema


def _schema(generator: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_text, _number, _choice, _constant]
    if depth:
        kinds += [_object, _object, _list, _either]
    return generator.choice(kinds)(generator, depth - 1)


def _text(generator: random.Random, depth: int) -> dict[str, Any]:
    least = generator.randrange(3)
    return generator.choice(
        [
            {"type": "string", "minLength": least, "maxLength": least + generator.randrange(8)},
            {"type": "string", "pattern": "^[a-z]{1,3}-[0-9]+$", "maxLength": 12},
            {"type": "string", "format": generator.choice(["date", "uuid", "ipv4"])},
        ]
    )


def _number(generator: random.Random, depth: int) -> dict[str, Any]:
    least = generator.randrange(-50, 50)
    most = least + generator.randrange(1, 200)
    return generator.choice(
        [
            {"type": "integer", "minimum": least, "maximum": most},
            {"type": "number", "exclusiveMinimum": least, "maximum": most},
            {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
            {"type": "boolean"},
        ]
    )


def _choice(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": generator.sample([*_WORDS, 1, -2.5, True, None, [], {"k": 1}], 3)}


def _constant(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"const": generator.choice([*_WORDS, 0, None, [1, "b"]])}


def _object(generator: random.Random, depth: int) -> dict[str, Any]:
    names = generator.sample(_WORDS, generator.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: _schema(generator, depth) for name in names},
        "required": [name for name in names if generator.random() < 0.6],
        "additionalProperties": False,
    }


def _list(generator: random.Random, depth: int) -> dict[str, Any]:
    least = generator.randrange(2)
    return {
        "type": "array",
        "items": _schema(generator, depth),
        "minItems": least,
        "maxItems": least + generator.randrange(3),
    }


def _either(generator: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_schema(generator, depth) for _ in range(2)]}


def shortest(schema: dict[str, Any]) -> Any:
    """A value that fits a schema of `random_schema`, as short as one can be, written without white space."""
    if "$ref" in schema:
        return shortest(schema["$defs"]["it"])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema or "anyOf" in schema:
        fitting = schema["enum"] if "enum" in schema else [shortest(one) for one in schema["anyOf"]]
        return min(fitting, key=lambda value: len(json.dumps(value, ensure_ascii=False)))
    match schema["type"]:
        case "object":
            return {name: shortest(schema["properties"][name]) for name in schema["required"]}
        case "array":
            return [shortest(schema["items"])] * schema["minItems"]
        case "boolean":
            return True
        case "string":
            return _shortest_text(schema)
        case _:
            least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            return min(range(least, schema["maximum"] + 1), key=lambda number: len(str(number)))


def _shortest_text(schema: dict[str, Any]) -> str:
    if "pattern" in schema:
        return "a-0"
    formats = {"date": "2000-01-01", "uuid": "00000000-0000-0000-0000-000000000000", "ipv4": "0.0.0.0"}
    return formats[schema["format"]] if "format" in schema else "a" * schema["minLength"]
