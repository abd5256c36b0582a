"""Schemas as generators write them: zod 4 (`z.toJSONSchema`), zod-to-json-schema, TypeBox, and pydantic."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AnyUrl,
    AwareDatetime,
    Base64Str,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    FutureDate,
    HttpUrl,
    Json,
    NonNegativeInt,
    PositiveFloat,
    RootModel,
    SecretBytes,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    conlist,
)
from typing_extensions import TypedDict

_2020 = "https://json-schema.org/draft/2020-12/schema"
_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
_SAFE = 9007199254740991


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Node(BaseModel):
    value: str
    children: list[Node] = []


class Chain(BaseModel):
    next: Chain | None = None


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", title="A title", json_schema_extra={"examples": [{"a": 1}]})
    a: Annotated[str, Field(description="d", deprecated=True)]
    b: float | None = None


class Point(NamedTuple):
    x: int
    y: int


class Film(TypedDict, total=False):
    title: str
    year: int


Pet = Annotated[Cat | Dog, Discriminator("kind")]
PYDANTIC: dict[str, Any] = {
    **{
        one.__name__: one
        for one in (
            bool, int, float, str, bytes, complex, datetime.datetime, datetime.date, datetime.time,
            datetime.timedelta, uuid.UUID, Decimal, pathlib.Path, ipaddress.IPv4Address,
            ipaddress.IPv6Address, ipaddress.IPv4Network, AnyUrl, HttpUrl, SecretStr, SecretBytes, ByteSize,
            AwareDatetime, FutureDate, Colour, Cat, Node, Chain,
            Strict, Point, Film,
        )
    },
    "re.Pattern": re.Pattern[str],
    "None": type(None),
    "Any": Any,
    "list[int]": list[int],
    "tuple[int, str]": tuple[int, str],
    "tuple[int, ...]": tuple[int, ...],
    "Sequence[str]": Sequence[str],
    "conlist": conlist(int, min_length=2, max_length=3),
    "dict[str, int]": dict[str, int],
    "dict[str, Any]": dict[str, Any],
    "Mapping[str, list[int]]": Mapping[str, list[int]],
    "dict[int, str]": dict[int, str],
    "dict[UUID, int]": dict[uuid.UUID, int],
    "dict[Colour, int]": dict[Colour, int],
    "dict[Literal]": dict[Literal["a", "b"], int],
    "dict[pattern]": dict[Annotated[str, StringConstraints(pattern="^[a-z]+$")], int],
    "dict[length]": dict[Annotated[str, StringConstraints(min_length=1, max_length=3)], int],
    "dict[bounded]": Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    "Literal": Literal["a", 1, None, True],
    "Optional": str | None,
    "union": int | str | list[float],
    "discriminated": Pet,
    "list[discriminated]": list[Pet],
    "NonNegativeInt": NonNegativeInt,
    "PositiveFloat": PositiveFloat,
    "bounded float": Annotated[float, Field(gt=-1.5, le=3.25)],
    "multiple": Annotated[int, Field(multiple_of=5, ge=0)],
    "int64": Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
    "constrained str": Annotated[str, StringConstraints(min_length=2, max_length=9, pattern=r"^\w+$")],
    "bounded Decimal": Annotated[Decimal, Field(ge=0, max_digits=6, decimal_places=2)],
    "Json": Json[dict[str, int]],
    "Base64Str": Base64Str,
    "root": RootModel[list[Cat]],
}  # fmt: skip
"""Types of pydantic's documentation, by name."""
PYDANTIC_REFUSED: dict[str, tuple[Any, str]] = {
    "set[str]": (set[str], "uniqueItems"),
    "frozenset[int]": (frozenset[int], "uniqueItems"),
}


def pydantic_schema(
    kind: Any, *, by: Literal["validation", "serialization"] = "validation"
) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema(mode=by)


def _object(**properties: Any) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": properties, "required": list(properties)}


ZOD: dict[str, dict[str, Any]] = {
    "email": {"$schema": _2020, **_object(to={"type": "string", "format": "email", "pattern": _EMAIL})},
    "email alone": {"type": "string", "pattern": _EMAIL},
    "uuid": {
        "type": "string",
        "format": "uuid",
        "pattern": "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}"
        "-[0-9a-fA-F]{12}|00000000-0000-0000-0000-000000000000)$",
    },
    "guid, cuid, nanoid": _object(
        a={"type": "string", "format": "cuid", "pattern": "^[cC][^\\s-]{8,}$"},
        b={"type": "string", "format": "nanoid", "pattern": "^[a-zA-Z0-9_-]{21}$"},
    ),
    "base64": {
        "type": "string",
        "format": "base64",
        "contentEncoding": "base64",
        "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
    },
    "emoji, jwt, e164": _object(
        a={"type": "string", "format": "jwt"},
        b={"type": "string", "format": "e164", "pattern": "^\\+[1-9]\\d{6,14}$"},
    ),
    "int": {"type": "integer", "minimum": -_SAFE, "maximum": _SAFE},
    "float32": {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
    "float64": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    "positive": {"type": "number", "exclusiveMinimum": 0},
    "record": {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "number"},
    },
    "record of an enum": {
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["a", "b"]},
        "additionalProperties": {"type": "boolean"},
        "required": ["a", "b"],
    },
    "record of a pattern": {
        "type": "object",
        "propertyNames": {"type": "string", "pattern": "^x[0-9]$"},
        "additionalProperties": {"type": "null"},
    },
    "never": {"type": "object", "properties": {"a": {"not": {}}, "b": {"type": "null"}}, "required": ["b"]},
    "unknown": _object(a={}, b={"type": "null"}),
    "tuple with a rest": {
        "type": "array",
        "prefixItems": [{"type": "string", "maxLength": 3}, {"type": "null"}],
        "items": {"type": "boolean"},
    },
    "intersection": {
        "allOf": [_object(a={"type": "null"}), {"type": "object", "properties": {"a": {}}, "required": ["a"]}]
    },
    "discriminated union": {
        "oneOf": [
            _object(k={"type": "string", "const": "a"}, x={"type": "integer"}),
            _object(k={"type": "string", "const": "b"}),
        ]
    },
    "recursive": {
        "$ref": "#/$defs/__schema0",
        "$defs": {"__schema0": _object(k={"type": "array", "items": {"$ref": "#/$defs/__schema0"}})},
    },
    "recursive root": _object(n={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "default, metadata, readonly": _object(
        a={"default": 1, "type": "integer", "title": "t", "readOnly": True, "examples": [{"format": "x"}]},
        format={"type": "null", "$comment": "a property of this name", "id": "x", "deprecated": True},
    ),
    "zod-to-json-schema: named": {
        "$ref": "#/definitions/X",
        "definitions": {"X": _object(a={"type": "null"}, b={"$ref": "#/definitions/X/properties/a"})},
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    "zod-to-json-schema: tuple": {
        "type": "array",
        "minItems": 2,
        "items": [{"type": "null"}, {"type": "boolean"}],
        "additionalItems": {"type": "null"},
    },
    "zod-to-json-schema: set": {
        "type": "array",
        "uniqueItems": False,
        "items": {"type": "null"},
        "maxItems": 3,
    },
    "zod-to-json-schema: map": {
        "type": "array",
        "maxItems": 125,
        "items": {
            "type": "array",
            "items": [{"type": "null"}, {"type": "null"}],
            "minItems": 2,
            "maxItems": 2,
        },
    },
    "password": {
        "type": "string",
        "pattern": "^(?=.*[A-Z])(?=.*\\d)(?!.*--)(?![0-9])(?!_)[A-Za-z0-9_-]{3,8}$",
    },
}
ZOD_REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "set": ({"type": "array", "uniqueItems": True, "items": {"type": "integer"}}, "uniqueItems"),
    "a look-ahead in the middle": (
        _object(a={"type": "string", "pattern": "^a(?!b)c$"}),
        "properties.a.pattern",
    ),
    "exclusive union that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "names of a pattern that looks ahead": (
        {"type": "object", "propertyNames": {"pattern": "^a(?!b)"}},
        "propertyNames",
    ),
    "TypeBox: intersection without others": (
        {"allOf": [{"type": "object", "properties": {"x": {}}}], "unevaluatedProperties": False},
        "unevaluatedProperties",
    ),
}

TYPEBOX: dict[str, dict[str, Any]] = {
    "recursive": {
        "$id": "Node",
        **_object(id={"type": "null"}, nodes={"type": "array", "items": {"$ref": "Node"}}),
    },
    "inner recursive": _object(
        tree={"$id": "T0", **_object(nodes={"type": "array", "items": {"$ref": "T0"}})}
    ),
    "tuple": {
        "type": "array",
        "items": [{"type": "null"}],
        "additionalItems": False,
        "minItems": 1,
        "maxItems": 1,
    },
    "record": {"type": "object", "patternProperties": {"^(.*)$": {"type": "boolean"}}},
    "record of keys": {
        "type": "object",
        "patternProperties": {"^(0|[1-9][0-9]*)$": {"type": "null"}},
        "additionalProperties": False,
    },
    "enum": {"anyOf": [{"const": 0, "type": "number"}, {"const": "b", "type": "string"}]},
    "template literal": {"type": "string", "pattern": "^option-(a|b)$"},
    "never": {"type": "object", "properties": {"a": {"not": {}}}},
    "unsafe": _object(a={"type": "string", "nullable": True, "x-mark": {"type": 3}}),
    "draft 4 bounds": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
    },
}
