"""Read and validate a JSON body (`bodies/body_reading.py`): off the event loop, unless it certainly takes
less than 1 ms."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from api.access.auth import caller
from api.answers.errors import ApiFailure, unknown_encoding
from api.bodies.body import Body, charge_body
from api.bodies.body_reading import BodyRejected, read_body
from api.bodies.json_pieces import PiecedResponse
from api.bodies.unknown_fields import HEADER, SCOPE_KEY, ignored
from api.bodies.worker_threads import FairLimiter
from scheduler.errors import SchedulerError
from scheduler.offload import Lane, Offload

INLINE_BYTES = 1 << 16
INLINE_OBJECTS = 24
INLINE_VALUES = 1024
"""A body within all three bounds is handled on the event loop. In short messages each object takes 25 µs on a
slow core, in token ids each value 0.2 µs. A thread takes 100 µs to start, which larger bodies hardly
notice."""
INLINE_STORED_BYTES = 1 << 13
"""The bound on a stored conversation, which is decoded but not validated again."""
LARGE_BYTES = 1 << 18
"""Larger bodies have one model at a time: it takes 50 bytes for each byte of short messages."""
MODELS = 4
"""Models of smaller bodies that exist at a time."""

_T = TypeVar("_T")
_Body = TypeVar("_Body", bound=Body)


class ModelPlaces:
    """Places for models of bodies, from before they are made until they are dropped: were each made and each
    dropped in turn, all that wait for their second turn would exist at once."""

    def __init__(self) -> None:
        self._limiters = {Lane.PLAIN: FairLimiter(MODELS), Lane.LARGE: FairLimiter(1)}

    async def take(self, tenant: str, lane: Lane | None) -> Callable[[], None]:
        """Return what gives the place back; calling it again does nothing."""
        if lane is None:
            return _nothing
        limiter = self._limiters[lane]
        await limiter.acquire(tenant)
        held = [tenant]

        def give_back() -> None:
            while held:
                limiter.release(held.pop())

        return give_back


@dataclass(frozen=True, slots=True)
class BodyWork:
    """Runs work over a body where its size allows: `await work(make)`."""

    request: Request
    offload: Offload
    tenant: str
    lane: Lane | None
    """The worker's lane; None validates on the event loop."""
    give_back: Callable[[], None]
    """Gives back the place of the body's model."""

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

    def response(self, content: dict[str, Any], *, repeats: bool = False) -> PiecedResponse:
        """Return a whole answer, encoded as it is sent. `repeats`: whether texts of the body, or what is
        made of them, are in it whole."""
        return PiecedResponse(content, self.offload, self.tenant, in_place=self.lane is None or not repeats)

    async def decode(self, body: _Body, decode: Callable[[_Body], _T]) -> _T:
        """Return what `decode` makes of `body`, and drop the body's conversation."""

        def decoded() -> _T:
            try:
                return decode(body)
            finally:
                body.release()

        try:
            return await self(decoded)
        finally:
            self.give_back()


def lane_of(body: bytes) -> Lane | None:
    """Return the lane that validates the body, or None for the event loop. The counts include what is in
    strings; counting takes 5 µs."""
    if len(body) > LARGE_BYTES:
        return Lane.LARGE
    small = (
        len(body) <= INLINE_BYTES
        and body.count(b"{") <= INLINE_OBJECTS
        and body.count(b",") + body.count(b"[") <= INLINE_VALUES
    )
    return None if small else Lane.PLAIN


def _nothing(*_: object) -> None: ...


class _JsonRequest(Request):
    """A request whose `json` is the validated model of the route's body."""

    model: type[Body]
    work: BodyWork | None = None

    async def body(self) -> bytes:
        """Return the body's first byte, or nothing if it is empty. FastAPI only asks whether there is a body,
        and keeps this until the answer is made: nothing may hold the text of a waiting request's
        screenshots."""
        return (await super().body())[:1]

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            encoding = self.headers.get("content-encoding", "")
            if any(name.strip().lower() not in ("", "identity") for name in encoding.split(",")):
                raise BodyRejected(ApiFailure(unknown_encoding(encoding)))
            body = await super().body()
            try:
                work = await _work_of(self, body)
                work = self.work = replace(work, give_back=await _place(work))
                self._body = b""
                read = partial(read_body, self.model, body)
                del body
                self._json, self.scope[SCOPE_KEY], made_bytes = await work(read)
                charge_body(self.scope, made_bytes)
            except SchedulerError as error:
                raise BodyRejected(error) from None
            finally:
                if not (self.model.bulk and hasattr(self, "_json")):
                    self.end()
        return self._json

    def end(self) -> None:
        """Give back the place of the body's model, which is dropped, or never was."""
        if self.work is not None:
            self.work.give_back()


async def _place(work: BodyWork) -> Callable[[], None]:
    """Take a place for the body's model, once what is made of bodies has room: nobody waits for that with a
    place. Return what gives it back."""
    scope, places = work.request.scope, work.request.app.state.model_places
    # Without a scope's own: another server than ours.
    has_room: Callable[[], bool] = scope.get("has_room", lambda: True)
    while True:
        give_back: Callable[[], None] = await places.take(work.tenant, work.lane)
        if has_room():
            return give_back
        give_back()
        await scope["wait_for_room"]()


async def body_work(request: Request) -> BodyWork:
    """Return the `BodyWork` of the request. Raise InvalidRequest for an invalid header."""
    if isinstance(request, _JsonRequest) and request.work is not None:
        return request.work
    return await _work_of(request, await request.body())


async def _work_of(request: Request, body: bytes) -> BodyWork:
    known = await caller(request)
    return BodyWork(request, request.app.state.offload, known.tenant, lane_of(body), _nothing)


BodyWorkOf = Annotated[BodyWork, Depends(body_work)]


def _as_validated(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    """Pass a validated model through; refuse anything else (no body)."""
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
            # `curl -d` says that it sends a form. Pages of other sites, which must say that or be asked
            # first, are refused by their origin (`access/request_origin.py`).
            others = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
            request.scope["headers"] = [*others, (b"content-type", b"application/json")]
            json_request = _JsonRequest(request.scope, request.receive)
            json_request.model = model
            try:
                response = await handler(json_request)
            except BodyRejected as rejected:
                raise rejected.error from None
            finally:
                json_request.end()
            if names := ignored(request.scope):
                response.headers[HEADER] = ",".join(names)
                request.app.state.bodies_with_ignored_fields.labels(self.path_format).inc()
            return response

        return with_validated_body
