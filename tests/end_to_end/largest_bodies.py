"""Bodies with one field as large as the bounds allow, for every field that `/openapi.json` describes. Plain
data.

The document has most bounds. Those on any body's text, values, objects and depth are
`bodies/json_text.py`'s. A server may refuse any of these bodies; whatever it does with one, its event loop
must go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from api.bodies.fields import MAX_ITEMS
from api.bodies.json_text import MAX_CONTAINERS, MAX_MEMBERS, MAX_NESTING, MAX_VALUES

Schema: TypeAlias = Mapping[str, Any]

MOST_BYTES: Final = 15 << 20
"""Bound on a body's text; the server's default bound is 16 MiB."""
_SPARE: Final = 64
"""Values, containers and members that are left for the rest of the body."""
_DEPTH: Final = MAX_NESTING - 12
"""Depth of a deep value: its place in the body takes some."""
_NARROW: Final = 1024
"""Shorter texts, and lists and objects of fewer characters, are not worth a body."""

_BASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "CreateResponse": {"input": "hello", "max_output_tokens": 2, "tool_choice": "none"},
    "ChatCompletionRequest": {"max_tokens": 2, "tool_choice": "none"},
    "MessagesRequest": {"max_tokens": 2, "tool_choice": {"type": "none"}},
    "CompletionRequest": {"max_tokens": 2},
    "TokenizeRequest": {"prompt": "hello"},
    "PrefixRequest": {},
}
"""Beside required fields: what makes it a short answer whose prompt has no tools, so that their size has no
other bound."""
_WITHOUT: Final = {"TokenizeRequest": {"messages": "prompt", "tools": "prompt"}}
"""By schema: fields that leave out another one."""


@dataclass(frozen=True, slots=True)
class Largest:
    """A body whose `field` is as large as it may be, in one of several shapes."""

    path: str
    """The route's."""
    field: str
    """The place in the body; of a value that may be of several types, `<Type>`."""
    shape: str
    make: Callable[[], dict[str, Any]]

    @property
    def name(self) -> str:
        return f"{self.path} {self.field} {self.shape}"


def largest_bodies(document: Schema, most_bytes: int = MOST_BYTES) -> Iterator[Largest]:
    """Yield a body for every field without a narrow bound, in each shape that it may have. `most_bytes`:
    bound on a body's text."""
    walk = _Walk(document["components"]["schemas"], most_bytes)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            content = operation.get("requestBody", {}).get("content", {})
            if (schema := content.get("application/json", {}).get("schema")) is not None:
                yield from walk.bodies(path, schema)


SHAPES: Final = ("flat", "deep", "lists", "objects")


def value_of(shape: str) -> Any:
    """Return the largest value of any JSON type in one of `SHAPES`."""
    match shape:
        case "flat":
            return [0.5] * (MAX_VALUES - _SPARE)
        case "deep":
            value: Any = [0] * (MAX_VALUES - _SPARE - _DEPTH)
            for _ in range(_DEPTH):
                value = [value]
            return value
        case "lists":
            value = [[] for _ in range(MAX_CONTAINERS - _SPARE - _DEPTH)]
            for _ in range(_DEPTH):
                value = [value]
            return value
        case _:
            each = MAX_MEMBERS // MAX_CONTAINERS
            one = {f"member {number}": f"value {number}" for number in range(each)}
            return [one] * (MAX_CONTAINERS - _SPARE)


def _valued(shape: str) -> dict[str, Any]:
    return {"value": value_of(shape)}


Place: TypeAlias = Callable[[Any], Any]
"""Returns the body with this value in a place."""


class _Walk:
    """Schemas of bodies, from the root to each field."""

    def __init__(self, definitions: Mapping[str, Schema], most_bytes: int) -> None:
        self._definitions = definitions
        self._most_bytes = most_bytes

    def bodies(self, path: str, schema: Schema) -> Iterator[Largest]:
        root = schema["$ref"].rpartition("/")[2]
        base = {**self._least(schema), **_BASES.get(root, {})}
        without = _WITHOUT.get(root, {})
        for name, member in self._resolved(schema)["properties"].items():
            kept = {known: value for known, value in base.items() if known != without.get(name)}
            place = partial(_with_member, kept, name)
            for field, shape, make in self._fields(member, name, place, frozenset()):
                yield Largest(path, field, shape, make)

    def _fields(
        self, schema: Schema, field: str, place: Place, within: frozenset[str]
    ) -> Iterator[tuple[str, str, Callable[[], Any]]]:
        """Yield a field, and all in it, in each shape."""
        alternatives = [one for one in self._alternatives(schema) if _may_be_large(one)]
        for one in alternatives:
            title = one.get("title", "")
            named = f"{field}<{title}>" if len(alternatives) > 1 and "properties" in one else field
            for shape, value in self._largest(one):
                yield named, shape, partial(_placed, place, value)
            if "properties" in one and title not in within:
                least = self._least(one)
                for name, member in one["properties"].items():
                    inner = partial(_within, place, partial(_with_member, least, name))
                    yield from self._fields(member, f"{named}.{name}", inner, within | {title})
            if "items" in one:
                inner = partial(_within, place, _alone)
                yield from self._fields(one["items"], f"{named}[]", inner, within)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema

    def _alternatives(self, schema: Schema) -> list[Schema]:
        schema = self._resolved(schema)
        inner = schema.get("anyOf") or schema.get("oneOf")
        return [schema] if inner is None else [each for one in inner for each in self._alternatives(one)]

    def _largest(self, schema: Schema) -> Iterator[tuple[str, Callable[[], Any]]]:
        match schema.get("type"):
            case "string":
                length = min(schema.get("maxLength", self._most_bytes), self._most_bytes)
                if length > _NARROW:
                    yield "text", lambda: "x y " * (length // 4)
                    yield "escapes", lambda: '"\n' * (length // 4)
            case "array":
                for number, item in enumerate(self._alternatives(schema["items"])):
                    least = self._least(item)
                    count = min(schema.get("maxItems", MAX_VALUES - _SPARE), _most(least, self._most_bytes))
                    if count * len(str(least)) > _NARROW:
                        yield f"items {number}", partial(_repeated, least, count)
            case "object" if "properties" not in schema:
                inner = schema.get("additionalProperties")
                least = self._least(inner) if isinstance(inner, Mapping) and inner else 0.5
                yield "names", lambda: {f"name {number}": least for number in range(MAX_ITEMS)}
                if least == 0.5:
                    for shape in SHAPES:
                        yield shape, partial(_valued, shape)
                        # Clients write a call's arguments as a text.
                        yield f"text of {shape}", lambda shape=shape: json.dumps(_valued(shape))
            case None if "properties" not in schema:
                for shape in SHAPES:
                    yield shape, partial(value_of, shape)
            case _:
                pass

    def _least(self, schema: Schema) -> Any:
        """Return a smallest value that the schema allows."""
        one = next(each for each in self._alternatives(schema) if each.get("type") != "null")
        if "const" in one:
            return one["const"]
        if "enum" in one:
            return one["enum"][0]
        match one.get("type"):
            case "string":
                return "a" * max(1, one.get("minLength", 1))
            case "integer" | "number":
                return int(one.get("minimum", 1))
            case "boolean":
                return False
            case "array":
                return [self._least(one["items"])] * one.get("minItems", 0)
            case _:
                properties = one.get("properties", {})
                return {name: self._least(properties[name]) for name in one.get("required", ())}


def _may_be_large(schema: Schema) -> bool:
    narrow = ("null", "boolean", "number", "integer")
    return "enum" not in schema and "const" not in schema and schema.get("type") not in narrow


def _placed(place: Place, make: Callable[[], Any]) -> Any:
    return place(make())


def _within(outer: Place, inner: Place, value: Any) -> Any:
    return outer(inner(value))


def _alone(value: Any) -> list[Any]:
    return [value]


def _with_member(rest: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**rest, name: value}


def _repeated(value: Any, count: int) -> list[Any]:
    return [value] * count


def _most(item: Any, most_bytes: int) -> int:
    """Return how many equal items a body may hold."""
    containers, members, size = _weight(item)
    bounds = [MAX_VALUES - _SPARE, most_bytes // size]
    if containers:
        bounds.append((MAX_CONTAINERS - _SPARE) // containers)
    if members:
        bounds.append((MAX_MEMBERS - _SPARE) // members)
    return min(bounds)


def _weight(value: Any) -> tuple[int, int, int]:
    """Return how many containers and members a value has, and about how many bytes its text."""
    match value:
        case dict():
            inner = [_weight(one) for one in value.values()]
            names = sum(len(name) + 5 for name in value)
            return 1 + sum(one[0] for one in inner), len(value), 2 + names + sum(one[2] for one in inner)
        case list():
            inner = [_weight(one) for one in value]
            return 1 + sum(one[0] for one in inner), 0, 2 + sum(one[2] for one in inner)
        case _:
            return 0, 0, len(str(value)) + 3
