"""The ASGI callables as types, spelled as Starlette spells them: a FastAPI object is an `Application`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

OnError: TypeAlias = Callable[[BaseException, str], None]
"""Called with what failed and for which request. It must not raise: nothing above catches it."""
