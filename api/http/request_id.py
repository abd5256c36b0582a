"""The id of a request in headers, logs and error bodies: the client's own if it is usable, else a new one.

Every response has it, so that a client's report leads to the log line.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCOPE_KEY = "request_id"
"""Its key in an ASGI scope: Penstock's server sets it, `RequestIds` does for other servers."""
HEADER = b"x-request-id"
ECHOED_IN = (HEADER, b"request-id")
"""OpenAI's clients read the first, Anthropic's the second."""
MAX_CHARACTERS = 128
_USABLE = re.compile(rb"[A-Za-z0-9._~:/+=@-]{1,%d}" % MAX_CHARACTERS)
"""Safe in a header, a log line, a label and a URL. Anything else, a line break above all, is replaced and not
sanitized: half of an id finds nothing."""


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the request's id. `headers` are as in ASGI, with names in lower case."""
    given = next((value for name, value in headers if name == HEADER), b"")
    return given.decode("ascii") if _USABLE.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    return f"req_{secrets.token_hex(12)}"


def echoed(request_id: str) -> list[tuple[bytes, bytes]]:
    """Return the response's headers with the id. `request_id` comes from `request_id_of` or
    `new_request_id`."""
    return [(name, request_id.encode("ascii")) for name in ECHOED_IN]


class RequestIds:
    """ASGI middleware, outside of all others, that adds the id to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = echoed(scope.setdefault(SCOPE_KEY, request_id_of(scope["headers"])))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, send_with_id)
