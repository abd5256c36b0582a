"""Read and validate a JSON body: off the event loop, unless it certainly takes less than 1 ms.

Bounds limit a body's cost: `api/json_text.py` checks its text before anything is decoded, and the fields' own
bounds (`api/fields.py`) stop at the first mistake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from fastapi import Depends, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from api import json_text
from api.auth import caller
from api.openai.messages import Body
from api.unknown_fields import HEADER, SCOPE_KEY, UnknownFields, ignored
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

_VALUE_BYTES = 64
"""About what one log-probability takes in an answer, with its token's text."""

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

    async def response(self, values: int, make: Callable[[], dict[str, Any]]) -> Response:
        """A response with the JSON text of what `make` makes, which has about this number of values."""
        text = await self.also_of(values * _VALUE_BYTES)(lambda: msgspec.json.encode(make()))
        return Response(text, media_type="application/json")

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
    work: BodyWork | None = None

    async def body(self) -> bytes:
        """Whether there is one: FastAPI looks at no more, and keeps what this returns until the answer is
        made. Of a waiting request nothing may hold the text of its screenshots."""
        return (await super().body())[:1]

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await super().body()
            try:
                work = self.work = await _work_of(self, body)
            except SchedulerError as error:
                raise _Rejected(error) from None
            self._body = b""
            policy = _Policy(self.app.state.refuse_unknown_fields, self.app.state.media == "refuse")
            validated = partial(_validated, self.model, body, policy)
            del body
            self._json, self.scope[SCOPE_KEY] = await work(validated)
        return self._json


@dataclass(frozen=True, slots=True)
class _Policy:
    """What of a body is refused: fields that nothing here knows, and media."""

    unknown_fields: bool
    media: bool


def _validated(model: type[Body], body: bytes, refuse: _Policy) -> tuple[Body, tuple[str, ...]]:
    """`body`, and the names of the fields that were dropped because nothing here knows them."""
    # Without a context where none is needed: pydantic takes 10 % longer with one.
    context = {"media": "refuse"} if refuse.media else None
    value = _decoded(body)
    if refuse.unknown_fields:
        return _valid(model, value, context), ()
    unknown = UnknownFields()
    with unknown.noting():
        found = _valid(model, value, context)
    return found, unknown.named(value)


def _decoded(body: bytes) -> Any:
    try:
        return json_text.decode(body)
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def _valid(model: type[Body], value: Any, context: dict[str, Any] | None) -> Body:
    try:
        return model.model_validate(value, context=context)
    except ValidationError as error:
        first: dict[str, Any] = {**error.errors(include_url=False)[0]}
        first["loc"] = ("body", *first["loc"])
        raise _Rejected(RequestValidationError([first], body=value)) from None


async def body_work(request: Request) -> BodyWork:
    """Raises InvalidRequest for a header."""
    if isinstance(request, _JsonRequest) and request.work is not None:
        return request.work
    return await _work_of(request, await request.body())


async def _work_of(request: Request, body: bytes) -> BodyWork:
    tenant = (await caller(request)).tenant
    return BodyWork(request.app.state.offload, tenant, lane_of(body))


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
                response = await handler(json_request)
            except _Rejected as rejected:
                raise rejected.error from None
            if names := ignored(request.scope):
                response.headers[HEADER] = ",".join(names)
                request.app.state.bodies_with_ignored_fields.labels(self.path_format).inc()
            return response

        return with_validated_body
