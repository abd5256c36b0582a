"""Markers on schema fields that the server knows but does not support in full, with reasons.

What it does not support at all is in `unsupported.py`; what nothing knows is ignored and named
(`unknown_fields.py`). `api/FIELDS.md` has the tables of all fields, made from these marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

UNSUPPORTED = "unsupported_parameter"
MAX_ITEMS = 100_000
"""The bound on any list or object of a body whose field has no narrower one. It is Anthropic's bound on
messages."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """`Annotated[T, WithoutEffect(why)]`: accepted with any value, but has no effect. A value that is no T
    becomes None, also where T has no None, since nothing reads it."""

    why: str
    named_unless: tuple[Any, ...] | None = None
    """Other values than these are wishes that are not met: named in `x-penstock-ignored`; without them
    nothing is named."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        anything = core_schema.no_info_plain_validator_function(_unread)
        return core_schema.union_schema([handler(source), anything], mode="left_to_right")

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe the values that its API has."""
        assert schema["type"] == "union"
        choice = schema["choices"][0]
        return handler(choice[0] if isinstance(choice, tuple) else choice)


def _unread(value: Any) -> None:
    """Drop a value of any type."""


@dataclass(frozen=True, slots=True)
class Partly:
    """`Annotated[T, Partly(why)]`: a validator of the field refuses some values."""

    why: str


def unsupported(why: str) -> PydanticCustomError:
    """Return the error for validators that refuse some values of a field."""
    return PydanticCustomError(UNSUPPORTED, "{why}", {"why": why})


@dataclass(frozen=True, slots=True)
class AtMost:
    """`Annotated[dict[K, V], AtMost(n)]`: refuse a larger object before any member is validated.

    Pydantic's `max_length` counts an object's members after it has validated all of them, and `fail_fast` is
    for lists only: a body of 16 MB would make a million errors of 300 bytes each.
    """

    members: int = MAX_ITEMS

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def check(self, value: Any) -> Any:
        if value == []:
            return {}  # PHP's empty object.
        if isinstance(value, dict) and len(value) > self.members:
            raise PydanticCustomError("too_long", f"it has more than {self.members} members")
        return value


Listed: TypeAlias = Annotated[list[_T], Field(max_length=MAX_ITEMS, fail_fast=True)]
"""A list whose validation ends with the first bad item: each collected error takes 800 bytes."""
JsonObject: TypeAlias = Annotated[dict[str, Any], AtMost()]
"""An object with member names of the client's choice."""
