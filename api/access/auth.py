"""Authentication: check every request's key before its body is read.

Routes declare `CallerOf` or `operator`. The check itself wraps the whole application, so that a route without
a declaration is not open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.access.api_keys import ApiKey, ApiKeys
from api.access.identity import Caller, Identity
from api.answers.errors import ADMIN_ONLY, NO_KEY, WRONG_KEY, ApiError, ApiFailure
from api.bodies.unknown_fields import ignored
from api.http.request_id import SCOPE_KEY
from scheduler.errors import InvalidRequest

OPEN_PATHS = frozenset(("/", "/health", "/ready", "/metrics", "/openapi.json"))
"""Paths without authentication: for load balancers and collectors, which have no keys; the API's description;
and the page that asks for a key."""

_STATE = "penstock_key"

Answer = Callable[[Scope, ApiError], Response]
"""Makes an error response in the dialect of the request's path."""


class Authentication:
    """ASGI middleware. Without configured keys it lets every request through."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, answer: Answer) -> None:
        self._app = app
        self._keys = keys
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._keys.keys:
            await self._app(scope, receive, send)
            return
        given = list(_given_keys(Headers(scope=scope)))
        found = [key for key in map(self._keys.find, given) if key is not None]
        if not found:
            if is_open(scope["path"]):
                await self._app(scope, receive, send)
                return
            error = WRONG_KEY if given else NO_KEY
            await self._answer(scope, error)(scope, receive, send)
            return
        scope[_STATE] = found[0]
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return whether `path` needs no key."""
    return (
        path in OPEN_PATHS
        or path in ("/docs", "/redoc")
        or path.startswith(("/docs/", "/static-offline-docs/"))
    )


def _given_keys(headers: Headers) -> Iterator[str]:
    """Return the keys from Anthropic's header and from OpenAI's. Every dialect accepts either or both: agents
    may send one provider's key in the other provider's header."""
    if key := headers.get("x-api-key", "").strip():
        yield key
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (token := token.strip()):
        yield token


def _key(request: Request) -> ApiKey | None:
    key = request.scope.get(_STATE)
    assert key is None or isinstance(key, ApiKey)
    return key


def account_of(scope: Scope, identity: Identity) -> str:
    """Return the tenant that is charged for a request's body, or "" for a bad header, which is refused
    later."""
    try:
        key = _key(Request(scope))
        return identity.tenant(Headers(scope=scope), None if key is None else key.tenant)
    except InvalidRequest:
        return ""


# Coroutines without an await: FastAPI would run plain functions in threads.


async def caller(request: Request) -> Caller:
    """Identify the caller: by key if the server has keys, else by the operator's headers. Raise
    InvalidRequest for a bad header."""
    key, identity = _key(request), request.app.state.identity
    assert isinstance(identity, Identity)
    tenant = None if key is None else key.tenant
    return identity.caller(
        request.headers,
        tenant,
        request.scope.get(SCOPE_KEY, ""),
        ignored(request.scope),
        is_operator=key is not None and key.admin,
    )


async def trusted(request: Request) -> bool:
    """Return whether the caller sent a valid key, or the server has no keys. For paths that need no key."""
    return _key(request) is not None or not request.app.state.has_keys


async def operator(request: Request) -> None:
    """Raise ApiFailure if the key is not an operator's. Used as `dependencies=[Depends(operator)]`."""
    key = _key(request)
    if key is not None and not key.admin:
        raise ApiFailure(ADMIN_ONLY)


CallerOf = Annotated[Caller, Depends(caller)]
