"""A schema as alternatives without combinators: they fit the values that the schema fits, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from scheduler.grammar.schema_forms import Form, Inexpressible, SchemaForms
from tests.examples import examples

SCALARS: list[Any] = [0, 1, True, False, 0.0, 1.0, 2, None, "1", "true"]
VALUES: list[Any] = [
    *SCALARS,
    *([value] for value in SCALARS),
    *({"a": value} for value in SCALARS),
    *([[value]] for value in SCALARS[:5]),
    *({"a": {"a": value}} for value in SCALARS[:5]),
]
"""Some of them are equal in Python, and other values in JSON."""

values = st.sampled_from(VALUES)
leaves = st.one_of(
    st.just({}),
    st.builds(lambda value: {"const": value}, values),
    st.builds(lambda some: {"enum": some}, st.lists(values, min_size=1, max_size=4)),
    st.builds(
        lambda kind: {"type": kind}, st.sampled_from(["boolean", "integer", "number", "array", "object"])
    ),
)
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one}, inner),
        st.builds(lambda one: {"type": "array", "prefixItems": [one]}, inner),
        st.builds(lambda one: {"type": "object", "properties": {"a": one}}, inner),
        st.builds(lambda one: {"type": "object", "additionalProperties": one}, inner),
        st.builds(lambda some: {"allOf": some}, st.lists(inner, min_size=2, max_size=3)),
        st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2)),
        st.builds(lambda one, other: {**one, "allOf": [other]}, leaves, inner),
    ),
    max_leaves=5,
)


def forms_of(schema: dict[str, Any], *, strict: bool = True) -> list[Form]:
    return SchemaForms(schema, strict=strict).of(schema, ())


def fits(form: Form, value: Any) -> bool:
    if not Draft202012Validator({**form.schema, "type": form.kind}).is_valid(value):
        return False
    if form.choices is not None:
        return any(Draft202012Validator({"const": choice}).is_valid(value) for choice in form.choices)
    return True


@settings(deadline=None, max_examples=examples(300))
@given(schemas)
@example({"allOf": [{"enum": [0, "x"]}, {"enum": [False, "x"]}]})
@example({"allOf": [{"const": [1]}, {"enum": [[True]]}]})
@example({"allOf": [{"const": {"a": 1}}, {"enum": [{"a": 1.0}]}]})
@example({"allOf": [{"type": "array", "items": {"const": one}} for one in (0, False)]})
@example({"allOf": [{"type": "array", "prefixItems": [{}]}, {"type": "array", "items": {"const": 0}}]})
@example({"allOf": [{"type": "object", "additionalProperties": {"enum": [one]}} for one in (1, True)]})
def test_the_forms_of_a_schema_fit_what_it_fits(schema: dict[str, Any]) -> None:
    """By a validator's word: 1 and true are two values, 1 and 1.0 are one, also deep inside."""
    try:
        forms = forms_of(schema)
    except Inexpressible:
        assume(False)
    of_schema = Draft202012Validator(schema)
    for value in VALUES:
        assert any(fits(form, value) for form in forms) is of_schema.is_valid(value), value


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [(1, True, True), (0, False, True), ([1], [True], True), (1, 1.0, False), ({"b": 0}, {"b": 0.0}, False)],
)
def test_constants_that_differ_tell_alternatives_apart(one: Any, other: Any, apart: bool) -> None:
    """A strict tool's `oneOf` needs it."""
    branches = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in (one, other)
    ]
    if apart:
        assert len(forms_of({"oneOf": branches})) == 2
    else:
        with pytest.raises(Inexpressible, match="more than one"):
            forms_of({"oneOf": branches})
