"""The base of every schema of a request's body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from api.bodies.fields import WithoutEffect, unsupported
from api.bodies.unknown_fields import UnknownFields
from api.bodies.unsupported import Fields

_RELEASED_AT_ONCE = 1000


class Body(BaseModel):
    """A schema. An undeclared field is ignored, and noted within `UnknownFields.noting`."""

    # `allow_inf_nan`: JSON as Python reads it knows NaN, and NaN passes no comparison that would refuse it.
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, protected_namespaces=())

    _names: ClassVar[frozenset[str]]
    """The names of its fields in a body."""
    _wishes: ClassVar[dict[str, tuple[Any, ...]]]
    """Name -> the values that the server meets without doing anything, of fields without effect."""
    unsupported: ClassVar[Fields] = {}
    """The fields that it refuses where they ask for something."""
    bulk: ClassVar[tuple[str, ...]] = ()
    """The fields that may be large, and that nothing reads after the request is decoded."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        cls._names = frozenset(field.alias or name for name, field in cls.model_fields.items())
        cls._wishes = {
            field.alias or name: mark.named_unless
            for name, field in cls.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, WithoutEffect) and mark.named_unless is not None
        }

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        # Clients that dump their own models send null in every field that they know.
        if value == []:
            return {}  # PHP's empty object.
        if not isinstance(value, dict):
            return value
        if cls.unsupported and (asked := cls.unsupported.keys() & value.keys() - cls._names):
            for name in sorted(asked):
                if cls.unsupported[name].asks(value[name], value):
                    raise _refused(name, cls.unsupported[name].why)
            value = {name: given for name, given in value.items() if name not in asked}
        if cls._wishes and (noted := UnknownFields.current()) is not None:
            for name, met in cls._wishes.items():
                if value.get(name) not in (None, *met):
                    noted.note(value, name)
        if not cls._names.issuperset(value) and (unknown := UnknownFields.current()) is not None:
            value = unknown.without(cls, value, cls._names)
        # Most bodies have no null, and need no copy.
        if None not in value.values():
            return value
        return {name: given for name, given in value.items() if given is not None}

    def release(self) -> None:
        """Drop the conversation, after the decoded request has its own copy: a body of short messages takes a
        model 50 bytes for each byte. In slices: 62,000 messages freed at once hold all threads for 36 ms."""
        for name in self.bulk:
            values = getattr(self, name)
            while isinstance(values, list) and values:
                del values[-_RELEASED_AT_ONCE:]
            if isinstance(values, str):
                self.__dict__[name] = None


def _refused(name: str, why: str) -> ValidationError:
    found: InitErrorDetails = {"type": unsupported(why), "loc": (name,), "input": None}
    return ValidationError.from_exception_data("a body", [found])


def release_body(scope: Mapping[str, Any], kept_bytes: int) -> None:
    """End the charge for a request's body, but for what its answer keeps of it: its prompt is tokens now.
    Another server's scope has none."""
    scope.get("release_body", id)(kept_bytes)


def charge_body(scope: Mapping[str, Any], count: int) -> None:
    """Charge what is made of a request's body, or held for its answer."""
    scope.get("charge_body", id)(count)
