"""Read and validate a JSON body: off the event loop, unless it certainly takes less than 1 ms.

Bounds limit a body's cost: `api/json_text.py` checks its text before anything is decoded, and the fields' own
bounds (`api/fields.py`) stop at the first mistake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Depends, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from api import json_text
from api.auth import caller
from api.openai.messages import Body
from scheduler.errors import SchedulerError
from scheduler.prompt.offload import Lane, Offload

INLINE_BYTES = 1 << 16
INLINE_OBJECTS = 24
INLINE_VALUES = 1024
"""A body within all three bounds is handled on the event loop. In short messages each object takes 25 µs on a
slow core, in token ids each value 0.2 µs. A thread takes 100 µs to start, which larger bodies hardly
notice."""
INLINE_STORED_BYTES = 1 << 13
"""The bound on a stored conversation, which is decoded but not validated again."""
LARGE_BYTES = 1 << 18
"""Larger bodies are validated one at a time: a model takes 50 bytes for each byte of short messages."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class BodyWork:
    """Runs work over a body where its size allows: `await work(lambda: decode(body))`."""

    offload: Offload
    tenant: str
    lane: Lane | None
    """None: on the event loop."""

    def also_of(self, stored_bytes: int) -> BodyWork:
        """Return the same for a body and this many more bytes of JSON text."""
        if stored_bytes <= INLINE_STORED_BYTES:
            return self
        large = self.lane is Lane.LARGE or stored_bytes > LARGE_BYTES
        return replace(self, lane=Lane.LARGE if large else Lane.PLAIN)

    async def __call__(self, work: Callable[[], _T]) -> _T:
        if self.lane is None:
            return work()
        return await self.offload(work, tenant=self.tenant, lane=self.lane)

    async def decode(self, body: Body, work: Callable[[], _T]) -> _T:
        """Return the result of `work` on `body`, and drop the body's conversation."""

        def decoded() -> _T:
            try:
                return work()
            finally:
                body.release()

        return await self(decoded)


def lane_of(body: bytes) -> Lane | None:
    """Return the lane that validates the body; None: the event loop. Counting includes strings' contents,
    which takes 5 µs."""
    if len(body) > LARGE_BYTES:
        return Lane.LARGE
    small = (
        len(body) <= INLINE_BYTES
        and body.count(b"{") <= INLINE_OBJECTS
        and body.count(b",") + body.count(b"[") <= INLINE_VALUES
    )
    return None if small else Lane.PLAIN


class _Rejected(HTTPException):
    """Carries an error through FastAPI's parsing of a body, which passes on only this type."""

    def __init__(self, error: Exception) -> None:
        super().__init__(400)
        self.error = error


class _JsonRequest(Request):
    """A request whose `json` is the validated model of the route's body."""

    model: type[Body]

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                work = await body_work(self)
            except SchedulerError as error:
                raise _Rejected(error) from None
            self._json = await work(lambda: _validated(self.model, body))
        return self._json


def _validated(model: type[Body], body: bytes) -> Body:
    try:
        value = json_text.decode(body)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first: dict[str, Any] = {**error.errors(include_url=False)[0]}
        first["loc"] = ("body", *first["loc"])
        raise _Rejected(RequestValidationError([first], body=value)) from None


async def body_work(request: Request) -> BodyWork:
    """Return the lane of the request's body. Raise InvalidRequest for a bad header."""
    lane = lane_of(await request.body())
    tenant = (await caller(request)).tenant
    return BodyWork(request.app.state.offload, tenant, lane)


BodyWorkOf = Annotated[BodyWork, Depends(body_work)]


def _as_validated(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Pass a validated model through; refuse anything else (no body, or another content type)."""
    return value if isinstance(value, Body) else validate(value)


Validated: TypeAlias = Annotated[_T, WrapValidator(_as_validated)]
"""`body: Validated[Schema]`, in a route of a `JsonRoute`."""


class JsonRoute(APIRoute):
    """Used as `APIRouter(route_class=JsonRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        if self.body_field is None:
            return handler
        model = self.body_field.field_info.annotation
        assert isinstance(model, type), "a route's body is one model"
        assert issubclass(model, Body), "a route's body is one model"

        async def with_validated_body(request: Request) -> Response:
            json_request = _JsonRequest(request.scope, request.receive)
            json_request.model = model
            try:
                return await handler(json_request)
            except _Rejected as rejected:
                raise rejected.error from None

        return with_validated_body
