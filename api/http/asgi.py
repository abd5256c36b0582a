"""The ASGI callables as types, named as in Starlette: a FastAPI object is an `Application`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OnError: TypeAlias = Callable[[BaseException, str], None]
"""Called with the exception and the request it belongs to. It must not raise: no caller would catch it."""
