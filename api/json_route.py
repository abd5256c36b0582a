"""How a JSON body is read: strictly, and no deeper than anything that a client means.

Python's own reader takes NaN and lone surrogates, which are not JSON, and which no template, tokenizer or
log can pass on. What it makes of a deep body can end in a recursion error wherever the value is walked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

MAX_NESTING = 64
"""Objects and lists inside each other. Tools' schemas, the deepest that clients send, stay under 30."""

# The end is optional, so that a string which never ends is read once and not from each of its quotes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def read_json(body: bytes) -> Any:
    """Raises json.JSONDecodeError."""
    if too_deep(body):
        raise json.JSONDecodeError(f"it is nested deeper than {MAX_NESTING} levels", "", 0)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def too_deep(body: bytes) -> bool:
    """Whether brackets outside of strings stand deeper than `MAX_NESTING`."""
    if body.count(b"[") + body.count(b"{") <= MAX_NESTING:
        return False
    depth = 0
    for bracket in _STRING.sub(b"", body).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_NESTING:
            return True
    return False


class _StrictRequest(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = read_json(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """`APIRouter(route_class=JsonRoute)`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strictly(request: Request) -> Response:
            return await handler(_StrictRequest(request.scope, request.receive))

        return strictly
