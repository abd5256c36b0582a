"""Adapters that an engine is loading, and the tasks that wait for its replies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio

from scheduler.link.messages import AdapterLoaded, AdapterSource, LoadAdapter

_REPLY_SECONDS = 120.0
"""A step may take seconds, and an adapter's files may lie on a slow disk."""


class _Query:
    def __init__(self) -> None:
        self.reply: AdapterLoaded | None = None
        self.done = trio.Event()


class PendingAdapters:
    """Of one engine. Every caller gets one reply, also when the engine dies meanwhile."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}

    async def load(self, send: Callable[[LoadAdapter], None], adapter: AdapterSource) -> str | None:
        """Return why the engine refuses it, or an empty text; None: it did not answer."""
        number, query = next(self._numbers), _Query()
        self._open[number] = query
        send(LoadAdapter(number, adapter))
        try:
            with trio.move_on_after(_REPLY_SECONDS):
                await query.done.wait()
        finally:
            self._open.pop(number, None)
        return None if query.reply is None else query.reply.refusal

    def answered(self, reply: AdapterLoaded) -> None:
        """The caller may have left."""
        if (query := self._open.get(reply.query)) is not None:
            query.reply = reply
            query.done.set()

    def engine_lost(self) -> None:
        for query in self._open.values():
            query.done.set()
