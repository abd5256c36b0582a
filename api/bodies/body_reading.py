"""Decode and validate the bytes of a body. Plain functions, which run where a body's size allows.

Bounds limit a body's cost: `json_text.py` checks its text before anything is decoded, and the fields' own
bounds (`fields.py`) stop at the first mistake.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi.exceptions import HTTPException, RequestValidationError
from pydantic import ValidationError

from api.bodies import json_text
from api.bodies.body import Body
from api.bodies.unknown_fields import UnknownFields
from scheduler.errors import InvalidRequest


class BodyRejected(HTTPException):
    """Carries an error through FastAPI's parsing of a body, which passes on only this type."""

    def __init__(self, error: Exception) -> None:
        super().__init__(400)
        self.error = error


def read_body(model: type[Body], text: bytes) -> tuple[Body, tuple[str, ...], int]:
    """Decode and validate a body's text. Return the body, the names of the fields that were dropped because
    nothing here knows them, and how many bytes its prompt may take beside its texts. Raise BodyRejected, or
    JSONDecodeError as FastAPI does."""
    unknown = UnknownFields()
    with json_text.one_body() as budget, unknown.noting():
        try:
            value = json_text.decode(text)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error
        body = _valid(model, value)
    try:
        # A block of a history that cannot be read is a line of text, but not this one.
        budget.check()
    except json_text.TooMuch as error:
        raise BodyRejected(InvalidRequest(f"the body: {error}")) from None
    return body, unknown.named(value), budget.spent_bytes


def _valid(model: type[Body], value: Any) -> Body:
    try:
        # Without a context: pydantic takes 10 % longer with one.
        return model.model_validate(value)
    except ValidationError as error:
        # Without the input, which is a part of the body of any size.
        first: dict[str, Any] = {**error.errors(include_url=False, include_input=False)[0]}
        around = _around(value, first["loc"])
        first["loc"] = ("body", *first["loc"])
        raise BodyRejected(RequestValidationError([first], body=around)) from None


def _around(value: Any, path: Sequence[int | str]) -> Any:
    """Return the part of `value` on the path to a mistake, which is all that the error's text needs."""
    if not path:
        return None
    part, *rest = path
    if isinstance(value, dict) and part in value:
        return {part: _around(value[part], rest)}
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return [*([None] * part), _around(value[part], rest)]
    return _around(value, rest)
