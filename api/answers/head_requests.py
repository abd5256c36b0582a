"""`HEAD` wherever `GET` is: the same head, and no body."""

from __future__ import annotations

import trio
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadRequests:
    """ASGI middleware: asks the application for `GET`, and ends it at the first part of the body, which may
    be a stream without an end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        answered = trio.CancelScope()

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                if not answered.cancel_called:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    answered.cancel()
                return
            await send(message)

        # In place: other middleware looks into the same scope for the route.
        scope["method"] = "GET"
        try:
            with answered:
                await self._app(scope, receive, without_body)
        finally:
            scope["method"] = "HEAD"
