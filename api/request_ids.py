"""Every response says which request it answers, so that a client's report finds our log line."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.server.request_id import echoed, request_id_of

SCOPE_KEY = "request_id"
"""Our own server has put it there; another server's scope gets it here."""


class RequestIds:
    """ASGI middleware, outside of all others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = echoed(scope.setdefault(SCOPE_KEY, request_id_of(scope["headers"])))

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        await self._app(scope, receive, telling)
