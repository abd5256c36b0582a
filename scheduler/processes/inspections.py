"""Numbered inspections of one process, and who waits for the replies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import trio

from scheduler.errors import Unavailable
from scheduler.shared.messages import Inspect, Inspection, ToEngine

_REPLY_SECONDS = 30.0
"""The engine replies between two steps, and a step of a large prefill takes seconds."""


class _Query:
    def __init__(self) -> None:
        self.reply: Inspection | None = None
        self.done = trio.Event()


class Inspections:
    """Every caller gets one reply or one error, also when the engine dies meanwhile."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}
        self._closed = False

    async def inspect(self, clear: bool, top: int, head_tokens: int) -> Inspection:
        """Return the engine's contents, after an eviction with `clear`. Raise Unavailable if no reply
        arrives."""
        number, query = next(self._numbers), _Query()
        if not self._closed:
            self._send(Inspect(number, clear, top, head_tokens))
            self._open[number] = query
            try:
                with trio.move_on_after(_REPLY_SECONDS):
                    await query.done.wait()
            finally:
                self._open.pop(number, None)
        if query.reply is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return query.reply

    def answered(self, reply: Inspection) -> None:
        """Deliver a reply; the caller may have left."""
        if (query := self._open.get(reply.query)) is not None:
            query.reply = reply
            query.done.set()

    def close(self) -> None:
        """End all open queries without a reply: the process has ended."""
        self._closed = True
        for query in self._open.values():
            query.done.set()
