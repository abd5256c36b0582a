"""What a schema without `strict` asks is held, or named by its place: nothing is lost in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
from llguidance import LLMatcher

from scheduler.grammar.part import Parts
from scheduler.grammar.unheld import MORE, MOST_NAMED
from scheduler.shared.grammar_limits import parser_limits
from scheduler.structure import JsonText
from tests.scheduler.grammar.schema_walks import vocabulary

_A = {"type": "object", "properties": {"a": {"type": "integer"}}}
_TWO = {"type": "array", "items": {"type": "integer"}}
KEYWORDS: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, 1, 2),
    "$dynamicRef": ({"$dynamicRef": "#a", "$defs": {"a": {"$dynamicAnchor": "a", "const": 1}}}, 1, 2),
    "$recursiveRef": (
        {"type": ["array", "null"], "items": {"$recursiveRef": "#"}, "$recursiveAnchor": True},
        [None],
        ["x"],
    ),
    "additionalItems": (
        {"type": "array", "items": [{"const": 1}], "additionalItems": {"const": 2}},
        [1, 2],
        [1, 3],
    ),
    "additionalProperties": ({**_A, "additionalProperties": False}, {"a": 1}, {"b": 1}),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 3, 2),
    "anyOf": ({"anyOf": [{"const": 1}, {"const": 2}]}, 2, 3),
    "const": ({"const": 1}, 1, 2),
    "contains": ({**_TWO, "contains": {"const": 1}}, [1], [2]),
    "dependencies": ({**_A, "dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    "dependentRequired": ({**_A, "dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    "dependentSchemas": ({**_A, "dependentSchemas": {"a": {"required": ["b"]}}}, {"b": 1}, {"a": 1}),
    "disallow": ({"disallow": "string"}, 1, "x"),
    "divisibleBy": ({"type": "integer", "divisibleBy": 2}, 2, 3),
    "else": ({"if": {"type": "string"}, "else": {"const": 1}}, "x", 2),
    "enum": ({"enum": [1, "x"]}, "x", 2),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 3}, 2, 3),
    "exclusiveMinimum": ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 4, 3),
    "extends": ({"extends": {"const": 1}}, 1, 2),
    "format": ({"type": "string", "format": "json-pointer"}, "/a", "a"),
    "if": ({"if": {"const": 1}, "then": False}, 2, 1),
    "items": (_TWO, [1], ["x"]),
    "maxContains": ({**_TWO, "contains": {"const": 1}, "maxContains": 1}, [1], [1, 1]),
    "maxItems": ({**_TWO, "maxItems": 1}, [1], [1, 1]),
    "maxLength": ({"type": "string", "maxLength": 1}, "x", "xx"),
    "maxProperties": ({**_A, "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
    "maximum": ({"type": "integer", "maximum": 3}, 3, 4),
    "minContains": ({**_TWO, "contains": {"const": 1}, "minContains": 2}, [1, 1], [1]),
    "minItems": ({**_TWO, "minItems": 1}, [1], []),
    "minLength": ({"type": "string", "minLength": 2}, "xx", "x"),
    "minProperties": ({**_A, "minProperties": 1}, {"a": 1}, {}),
    "minimum": ({"type": "integer", "minimum": 3}, 3, 2),
    "multipleOf": ({"type": "integer", "multipleOf": 2}, 2, 3),
    "not": ({"not": {"type": "string"}}, 1, "x"),
    "oneOf": ({"oneOf": [{"type": "object", "required": ["a"]}, _A]}, {"b": 1}, {"a": 1}),
    "pattern": ({"type": "string", "pattern": "a(?!b)"}, "ac", "ab"),
    "patternProperties": ({"type": "object", "patternProperties": {"^x": {"const": 1}}}, {"x": 1}, {"x": 2}),
    "prefixItems": ({"type": "array", "prefixItems": [{"const": 1}]}, [1], [2]),
    "properties": (_A, {"a": 1}, {"a": "x"}),
    "propertyNames": ({**_A, "propertyNames": {"type": "string", "maxLength": 1}}, {"a": 1}, {"aa": 1}),
    "required": ({**_A, "required": ["a"]}, {"a": 1}, {}),
    "then": ({"if": {"type": "string"}, "then": {"const": "a"}}, "a", "b"),
    "type": ({"type": "integer"}, 1, "x"),
    "unevaluatedItems": (
        {"type": "array", "anyOf": [{"prefixItems": [{"const": 1}]}, {}], "unevaluatedItems": False},
        [1],
        [1, 2],
    ),
    "unevaluatedProperties": ({**_A, "anyOf": [_A, {}], "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
    "uniqueItems": ({**_TWO, "uniqueItems": True}, [1], [1, 1]),
}
SAYS_OF: dict[str, str] = {
    "then": "if",
    "else": "if",
    "minContains": "contains",
    "maxContains": "contains",
    "$recursiveRef": "items/$recursiveRef",
}
SAYS_NOTHING = frozenset(
    (
        "$anchor", "$comment", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "$schema", "$vocabulary",
        "contentEncoding", "contentMediaType", "contentSchema", "default", "definitions", "deprecated",
        "description", "examples", "id", "readOnly", "title", "writeOnly",
    )
)  # fmt: skip


def held(schema: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The grammar of a schema without `strict`, and the pointers to what it does not hold."""
    parts = Parts(vocabulary().complaint)
    part = parts.checked(JsonText(schema, "p", exact=False))
    assert all(name.startswith("p#") for name in parts.unheld)
    return json.dumps({"grammars": [part]}), tuple(name.removeprefix("p#") for name in parts.unheld)


def allows(grammar: str, value: Any) -> bool:
    matcher = LLMatcher(vocabulary()._tokenizer, grammar, log_level=0, limits=parser_limits())
    tokens = list(json.dumps(value, separators=(",", ":")).encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and (
        matcher.is_accepting() or (matcher.is_stopped() and not matcher.is_error())
    )


_ROOTED = ("$ref", "$dynamicRef", "$recursiveRef")
"""Their cases refer to the root."""
_INNER = [name for name in KEYWORDS if name not in _ROOTED]


@pytest.mark.parametrize(
    ("place", "keyword"),
    [("", name) for name in KEYWORDS]
    + [(place, name) for place in ("/properties/q~1r", "/$defs/x") for name in _INNER],
)
def test_each_keyword_is_held_or_named(place: str, keyword: str) -> None:
    """At the root, in a property and behind a reference; what fits the schema is allowed all the same."""
    inner, fits, breaks = KEYWORDS[keyword]
    schema, good, bad = inner, fits, breaks
    if place:
        at = {"$ref": "#/$defs/x"} if place == "/$defs/x" else inner
        schema = {"type": "object", "properties": {"q/r": at}, "required": ["q/r"], "$defs": {"x": inner}}
        good, bad = {"q/r": fits}, {"q/r": breaks}
    grammar, named = held(schema)
    assert allows(grammar, good)
    said = f"{place}/{SAYS_OF.get(keyword, keyword)}"
    assert (said in named) == allows(grammar, bad), (named, said)


def test_the_table_has_every_keyword_of_the_drafts() -> None:
    """By their meta-schemas."""
    drafts = [str(uri) for uri in REGISTRY if "schema" in str(uri)]
    known = {name for uri in drafts for name in REGISTRY.contents(uri).get("properties", {})}
    assert {"extends", "dependentSchemas", "$recursiveRef", "uniqueItems"} <= known
    assert known - SAYS_NOTHING == KEYWORDS.keys()


def test_no_more_is_lost_than_a_keyword_says() -> None:
    """Exclusive alternatives stay alternatives, and `additionalItems` without a list says nothing."""
    grammar, named = held({"oneOf": [{"type": "integer"}, {"type": "number"}]})
    assert (named, allows(grammar, 1), allows(grammar, "x")) == (("/oneOf",), True, False)
    grammar, named = held({"type": "array", "additionalItems": {"const": 1}})
    assert (named, allows(grammar, [2])) == ((), True)


def test_many_are_named_by_the_first() -> None:
    many = {f"{name:02}": {"not": {"const": 1}} for name in range(40)}
    named = held({"type": "object", "properties": many})[1]
    assert named == (*(f"/properties/{name:02}/not" for name in range(MOST_NAMED)), MORE)
