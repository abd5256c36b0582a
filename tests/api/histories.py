"""What a conversation can have in it: every form that an official client's types know, and each of them
disturbed, as other servers, proxies, frameworks and next year's clients write it."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, get_args, get_origin

import typing_extensions
from pydantic import BaseModel

NEXT_YEAR: dict[str, Any] = {"type": "next_year", "payload": {"deep": [1, None, {"text": "x"}]}}
EMPTIES: tuple[Any, ...] = (None, "", [], {})

_AROUND = (Required, NotRequired, Annotated, typing_extensions.Required, typing_extensions.NotRequired)


def samples(hint: Any, inside: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield values of a type of the client's: of each member every form, one at a time."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is type(None) or hint in inside:
        return
    if origin in _AROUND:
        yield from samples(arguments[0], inside)
    elif origin in (Literal, typing_extensions.Literal):
        yield arguments[0]
    elif typing_extensions.is_typeddict(hint) or (isinstance(hint, type) and issubclass(hint, BaseModel)):
        yield from _objects(hint, (*inside, hint))
    elif origin is dict:
        yield {"key": value} if (value := next(samples(arguments[1], inside), None)) is not None else {}
    elif origin in (typing.Union, UnionType):
        for one in arguments:
            yield from samples(one, inside)
    elif arguments:
        yield from ([one] for one in samples(arguments[0], inside))
    else:
        yield {str: "text", int: 3, float: 0.5, bool: True}.get(hint, {"key": "value"})


def _objects(hint: Any, inside: tuple[Any, ...]) -> Iterator[dict[str, Any]]:
    members: dict[str, Any] = (
        {name: field.annotation for name, field in hint.model_fields.items()}
        if issubclass(hint, BaseModel)
        else typing.get_type_hints(hint, include_extras=True)
    )
    forms = {name: list(samples(member, inside)) for name, member in members.items()}
    first = {name: given[0] for name, given in forms.items() if given}
    yield first
    for name, given in forms.items():
        yield from ({**first, name: form} for form in given[1:])


def disturbed(value: Any, kept: Collection[str] = ()) -> Iterator[Any]:
    """Yield `value` with one thing in it changed, at any depth: a member that nobody knows, a member that is
    null, empty or absent, a type of next year, a list with more in it. `kept`: members of `value` itself
    without which it says nothing."""
    if isinstance(value, dict):
        yield {**value, "zebra": {"a": [1]}}
        if isinstance(value.get("type"), str):
            yield {**value, "type": "next_year"}
        for name, member in value.items():
            if name in kept:
                continue
            yield {other: given for other, given in value.items() if other != name}
            yield from ({**value, name: empty} for empty in EMPTIES)
            yield from ({**value, name: other} for other in disturbed(member))
    elif isinstance(value, list):
        yield [*value, NEXT_YEAR]
        for at, item in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in disturbed(item))
