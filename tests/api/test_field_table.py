"""The documentation of fields, compared with the schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from api.bodies.fields import UNSUPPORTED, WithoutEffect
from api.bodies.unsupported import Unsupported
from api.dialects.openai.schema import ChatCompletionRequest
from tests.api.dialects.test_malformed_dialects import JUNK
from tests.api.field_table import DIALECTS, PAGE, Dialect, models_in, rewrite


def test_the_tables_are_true() -> None:
    """`python -m tests.api.field_table` regenerates them."""
    text = PAGE.read_text()
    assert rewrite(text) == text


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.heading for dialect in DIALECTS])
def test_what_the_official_client_sends_is_known(dialect: Dialect) -> None:
    """Only what no version of an API knows may be ignored: a schema decides on each of these fields."""
    assert dialect.missing == []


CASES = [
    (dialect, name, field)
    for dialect in DIALECTS
    for name, field in dialect.schema.unsupported.items()
    if name not in dialect.schema.model_fields
]


@pytest.mark.parametrize(("dialect", "name", "field"), CASES, ids=[name for _, name, _ in CASES])
def test_an_unsupported_field_is_refused_unless_it_asks_for_nothing(
    dialect: Dialect, name: str, field: Unsupported
) -> None:
    """By its name and with its reason."""
    for neutral in (None, *field.neutral):
        assert not errors_at(name, dialect.schema, {name: neutral})
    if field.equals:
        assert not errors_at(name, dialect.schema, {name: 3, field.equals: 3})
    for asks in ({"anything": "else"}, "a", ["a"], 17, field.only != (True,)):
        (found,) = errors_at(name, dialect.schema, {name: asks})
        assert (found["type"], found["msg"]) == (UNSUPPORTED, field.why)


def bodies() -> list[type[BaseModel]]:
    """Every schema in every place."""
    found: dict[type[BaseModel], None] = {}

    def visit(schema: type[BaseModel]) -> None:
        if schema in found:
            return
        found[schema] = None
        for field in schema.model_fields.values():
            for inner, _ in models_in(field.annotation, ""):
                visit(inner)

    for dialect in DIALECTS:
        visit(dialect.schema)
    return list(found)


WITHOUT_EFFECT = [
    (schema, field.alias or name)
    for schema in bodies()
    for name, field in schema.model_fields.items()
    if any(isinstance(mark, WithoutEffect) for mark in field.metadata)
]


@pytest.mark.parametrize(
    ("schema", "name"), WITHOUT_EFFECT, ids=[f"{schema.__name__}.{name}" for schema, name in WITHOUT_EFFECT]
)
def test_no_value_of_a_field_without_effect_is_refused(schema: type[BaseModel], name: str) -> None:
    """Next year's values, other types, empty ones; nor is it missed."""
    for value in (*JUNK, "next-year", 5, 1.5, ["a"], {"a": 1}, None):
        assert not errors_at(name, schema, {name: value}), value
    assert not errors_at(name, schema, {})


def errors_at(name: str, schema: type[BaseModel], body: Any) -> list[Any]:
    try:
        schema.model_validate(body)
    except ValidationError as error:
        return [found for found in error.errors() if found["loc"][:1] == (name,)]
    return []


OBJECTS = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    **{name: {} for name in ("logit_bias", "metadata", "reasoning", "chat_template_kwargs")},
}


def test_an_empty_list_is_an_empty_object_where_one_stands() -> None:
    """PHP writes both alike."""
    written = json.loads(json.dumps(OBJECTS).replace("{}", "[]"))
    assert ChatCompletionRequest.model_validate(written) == ChatCompletionRequest.model_validate(OBJECTS)
