"""Schemas that generators write are held as they are, or refused with their place before an answer begins; no
answer fails in its middle."""

from __future__ import annotations

import json
import uuid
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.validators import validator_for
from pydantic import BaseModel, ConfigDict, Discriminator, Field, HttpUrl, TypeAdapter, conlist
from referencing.exceptions import Unresolvable

from scheduler.errors import InvalidRequest
from scheduler.grammar.part import Parts
from scheduler.grammar.plain_schema import HELD_FORMATS
from tests.examples import examples
from tests.scheduler.grammar.schema_walks import grammar, parts, vocabulary, walk

WALKS = 4
_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    tricks: list[str]


class Point(NamedTuple):
    x: int
    y: float | None


class Node(BaseModel):
    model_config = ConfigDict(extra="forbid", title="A title", json_schema_extra={"examples": [{"a": 1}]})
    id: Annotated[uuid.UUID, Field(description="d", deprecated=True)]
    pet: Annotated[Cat | Dog, Discriminator("kind")]
    url: HttpUrl | None = None
    some: conlist(Literal["a", 1, None, True], min_length=2, max_length=3)  # type: ignore[valid-type]
    named: Annotated[dict[str, Point], Field(min_length=1, max_length=2)] = {}
    size: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] = 0
    children: list[Node] = []


def _object(**properties: Any) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": properties, "required": list(properties)}


HELD: dict[str, dict[str, Any]] = {
    "pydantic": Node.model_json_schema(),
    "zod base64": {
        "type": "string",
        "format": "base64",
        "contentEncoding": "base64",
        "pattern": "^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
    },
    "zod float64": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    "zod record": {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "number"},
    },
    "zod never, unknown": {
        "type": "object",
        "properties": {"a": {"not": {}}, "b": {"type": "null"}, "c": {}},
        "required": ["b"],
    },
    "zod intersection": {
        "allOf": [_object(a={"type": "null"}), {"type": "object", "properties": {"a": {}}, "required": ["a"]}]
    },
    "zod recursive root": _object(n={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    "zod default, metadata, readonly": _object(
        a={"default": 1, "type": "integer", "title": "t", "readOnly": True, "examples": [{"format": "x"}]},
        format={"type": "null", "$comment": "a property of this name", "id": "x", "deprecated": True},
    ),
    "zod-to-json-schema: named": {
        "$ref": "#/definitions/X",
        "definitions": {"X": _object(a={"type": "null"}, b={"$ref": "#/definitions/X/properties/a"})},
        "$schema": "http://json-schema.org/draft-07/schema#",
    },
    "zod-to-json-schema: tuple, set": {
        "type": "array",
        "minItems": 2,
        "uniqueItems": False,
        "items": [{"type": "null"}, {"type": "boolean"}],
        "additionalItems": {"type": "null"},
    },
    "TypeBox recursive": {
        "$id": "Node",
        **_object(id={"type": "null"}, nodes={"type": "array", "items": {"$ref": "Node"}}),
    },
    "TypeBox record": {"type": "object", "patternProperties": {"^(.*)$": {"type": "boolean"}}},
    "draft 4 bounds": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "integer",
        "minimum": 0,
        "exclusiveMinimum": True,
        "maximum": 9,
    },
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pydantic set": (TypeAdapter(set[str]).json_schema(), "uniqueItems"),
    "pydantic keys": (TypeAdapter(dict[Literal["a", "b"], int]).json_schema(), "propertyNames"),
    "zod email": (
        _object(to={"type": "string", "format": "email", "pattern": _EMAIL}),
        "properties.to.pattern",
    ),
    "exclusive union that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "TypeBox: intersection without others": (
        {"allOf": [{"type": "object", "properties": {"x": {}}}], "unevaluatedProperties": False},
        "unevaluatedProperties",
    ),
}


def validator(schema: dict[str, Any]) -> Any:
    lists = "additionalItems" in json.dumps(schema) or "[" in json.dumps(schema.get("items"))
    return validator_for(schema, default=Draft7Validator if lists else Draft202012Validator)(schema)


@pytest.mark.parametrize("name", HELD)
def test_every_walk_through_a_generated_schema_fits_it(name: str) -> None:
    """By the `jsonschema` package."""
    written = grammar(HELD[name])
    texts = [walk(written, seed) for seed in range(WALKS)]
    assert any(texts)
    for text in filter(None, texts):
        validator(HELD[name]).validate(json.loads(text))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_refused_with_its_place(name: str) -> None:
    """Before an answer begins."""
    schema, place = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        grammar(schema)
    assert refused.value.param == f"p.{place}"


_NAMES = st.sampled_from(("a", "b", "c"))
_COUNT = st.integers(0, 3)
_REFERENCES = st.sampled_from(("#", "#/$defs/A", "#/$defs/B", "#/properties/a"))
_ANYTHING = st.sampled_from((None, -1, 1.0, "x", [], {}, ["x", {}], {"a": 3}, True))


def _keywords(schemas: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    listed = st.lists(schemas, min_size=1, max_size=3)
    named = st.dictionaries(_NAMES, schemas, max_size=3)
    kind = st.sampled_from(("string", "integer", "number", "boolean", "null", "array", "object"))
    return {
        "type": kind | st.lists(kind, min_size=1, max_size=2, unique=True),
        "$ref": _REFERENCES,
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed),
        "properties": named,
        **dict.fromkeys(("not", "contains", "items"), schemas),
        "additionalProperties": st.booleans() | schemas,
        "propertyNames": st.sampled_from((True, {"type": "string"}, {"enum": ["a", "d"]})),
        "patternProperties": st.dictionaries(st.sampled_from(("^a", "^x")), schemas, max_size=1),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        **dict.fromkeys(
            ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _COUNT
        ),
        **dict.fromkeys(("minimum", "exclusiveMinimum"), st.sampled_from((-1.8e308, -3, 0, 1.5))),
        **dict.fromkeys(("maximum", "exclusiveMaximum"), st.sampled_from((1.7e308, 3.4e38, 7))),
        "multipleOf": st.sampled_from((2, 5)),
        "uniqueItems": st.booleans(),
        "pattern": st.sampled_from(("^[ab]{1,3}$", "^(?!c)[a-c]{2}$")),
        "format": st.sampled_from(("date", "path")),
        "enum": st.lists(st.sampled_from(("a", "bb", 1, None, True)), min_size=1, max_size=3, unique_by=repr),
        "const": st.sampled_from(("a", 0, None, [1], {"a": None})),
        **dict.fromkeys(("title", "$comment", "default", "examples"), st.just(["x"])),
    }


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords = _keywords(inner)
    few = st.lists(st.sampled_from(sorted(keywords)), min_size=1, max_size=4, unique=True)
    return few.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


SCHEMAS = st.recursive(st.booleans() | _schemas(st.booleans()), _schemas, max_leaves=8)
ROOTS = st.builds(lambda root, a, b: {**root, "$defs": {"A": a, "B": b}}, _schemas(SCHEMAS), SCHEMAS, SCHEMAS)


@settings(max_examples=examples(80), deadline=None)
@given(ROOTS, st.booleans())
def test_a_schema_is_held_or_refused_before_the_answer(schema: dict[str, Any], exact: bool) -> None:
    """Any combination of keywords, with references to each other; what is not held is named, if it need not
    be exact."""
    fresh = Parts(parts().verdict)
    place, written = "p", ""
    try:
        written = grammar(schema, exact=exact, by=fresh)
    except InvalidRequest as refused:
        place = str(refused.param)
    assert place.split(".")[0] == "p"
    for seed in range(2 if written else 0):
        text = walk(written, seed)
        if text is not None and not fresh.unheld:
            try:
                Draft202012Validator(schema).validate(json.loads(text))
            except (RecursionError, Unresolvable):
                # Alternatives of which one is the schema itself, or fits nothing whatever it refers to.
                return


@settings(max_examples=examples(60), deadline=None)
@given(ROOTS, st.sampled_from(sorted(_keywords(st.booleans()))), _ANYTHING)
def test_what_is_no_schema_is_refused_or_ignored(schema: dict[str, Any], keyword: str, value: Any) -> None:
    """With any value for a keyword."""
    named = "p"
    try:
        grammar({**schema, keyword: value})
    except InvalidRequest as refused:
        named = str(refused.param)
    assert named.split(".")[0] == "p"


def test_the_formats_that_are_held_are_the_library_s() -> None:
    """All others are annotations."""
    for name in (*HELD_FORMATS, "path", "password", "binary", "int32", "idn-email"):
        part = json.dumps({"grammars": [{"json_schema": {"type": "string", "format": name}}]})
        assert (vocabulary().complaint(part) is None) == (name in HELD_FORMATS)
