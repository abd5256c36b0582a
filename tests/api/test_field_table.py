"""The documentation of fields, compared with the schemas."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from api.bodies.fields import UNSUPPORTED, Refused, WithoutEffect
from tests.api.bodies.test_malformed_requests import JUNK
from tests.api.field_table import DIALECTS, PAGE, Dialect, models_in, rewrite


def test_the_tables_are_true() -> None:
    """`python -m tests.api.field_table` regenerates them."""
    text = PAGE.read_text()
    assert rewrite(text) == text


@pytest.mark.parametrize("dialect", DIALECTS, ids=[dialect.heading for dialect in DIALECTS])
def test_what_the_official_client_sends_is_known(dialect: Dialect) -> None:
    """Only what no version of an API knows may be ignored: a schema decides on each of these fields."""
    assert dialect.missing == []


def marked(schema: type[BaseModel]) -> list[tuple[str, Refused]]:
    return [
        (name, mark)
        for name, field in schema.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Refused)
    ]


CASES = [(dialect, name, mark) for dialect in DIALECTS for name, mark in marked(dialect.schema)]


@pytest.mark.parametrize(("dialect", "name", "mark"), CASES, ids=[name for _, name, _ in CASES])
def test_a_refused_field_is_refused_and_its_neutral_value_is_not(
    dialect: Dialect, name: str, mark: Refused
) -> None:
    """By its name and with its reason."""

    for neutral in (None, *mark.neutral):
        assert not errors_at(name, dialect.schema, {name: neutral})
    (found,) = errors_at(name, dialect.schema, {name: {"anything": "else"}})
    assert (found["type"], found["msg"]) == (UNSUPPORTED, mark.why)


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
