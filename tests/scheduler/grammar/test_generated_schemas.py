"""Schemas that generators write are held as they are, or refused with their place before an answer begins; no
answer fails in its middle."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable

from scheduler.errors import InvalidRequest
from scheduler.grammar.part import Parts
from scheduler.grammar.plain_schema import HELD_FORMATS
from tests.scheduler.grammar.generated_schemas import (
    PYDANTIC,
    PYDANTIC_REFUSED,
    TYPEBOX,
    ZOD,
    ZOD_REFUSED,
    pydantic_schema,
)
from tests.scheduler.grammar.schema_walks import grammar, parts, vocabulary, walk

WALKS = 4
HELD: dict[str, dict[str, Any]] = {
    **{f"zod {name}": schema for name, schema in ZOD.items()},
    **{f"TypeBox {name}": schema for name, schema in TYPEBOX.items()},
    **{f"pydantic {name}": pydantic_schema(kind) for name, kind in PYDANTIC.items()},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **ZOD_REFUSED,
    **{name: (pydantic_schema(kind), place) for name, (kind, place) in PYDANTIC_REFUSED.items()},
}


def validator(schema: dict[str, Any]) -> Any:
    lists = "additionalItems" in json.dumps(schema) or "[" in json.dumps(schema.get("items"))
    return validator_for(schema, default=Draft7Validator if lists else Draft202012Validator)(schema)


def walked(schema: dict[str, Any], *, exact: bool = True) -> list[Any]:
    written = grammar(schema, exact=exact)
    texts = [walk(written, seed) for seed in range(WALKS)]
    return [json.loads(text) for text in texts if text is not None]


@pytest.mark.parametrize("name", HELD)
def test_every_walk_through_a_generated_schema_fits_it(name: str) -> None:
    """By the `jsonschema` package."""
    found = walked(HELD[name])
    assert found
    for value in found:
        validator(HELD[name]).validate(value)


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
        "propertyNames": st.sampled_from(
            (True, {"type": "string"}, {"enum": ["a", "d"]}, {"pattern": "^[a-c]$"}, {"maxLength": 2})
        ),
        "patternProperties": st.dictionaries(st.sampled_from(("^a", "^x")), schemas, max_size=1),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        **dict.fromkeys(
            ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"), _COUNT
        ),
        **dict.fromkeys(("minimum", "exclusiveMinimum"), st.sampled_from((-1.8e308, -3, 0, 1.5))),
        **dict.fromkeys(("maximum", "exclusiveMaximum"), st.sampled_from((1.7e308, 3.4e38, 7))),
        "multipleOf": st.sampled_from((2, 5)),
        "uniqueItems": st.booleans(),
        "pattern": st.sampled_from(("^[ab]{1,3}$", "^(?=.*b)(?!c)[a-c]{2}$", "^(?!.*aa)[ab]{2,4}$")),
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


def check(schema: dict[str, Any], *, exact: bool = True) -> None:
    """Raise if the schema is neither refused nor held, and nothing of it is named."""
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


@settings(max_examples=80, deadline=None)
@given(ROOTS)
def test_a_schema_is_held_or_refused_before_the_answer(schema: dict[str, Any]) -> None:
    """Any combination of keywords, with references to each other."""
    check(schema)


@settings(max_examples=60, deadline=None)
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
