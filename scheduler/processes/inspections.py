"""Numbered inspections of one process, and who waits for the replies. Viewers share one a second."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import trio

from scheduler.errors import Unavailable
from scheduler.shared.messages import Inspect, Inspection, ToEngine
from scheduler.shared.reports import CacheReport, PrefixReport

_REPLY_SECONDS = 30.0
"""The engine replies between two steps, and a step of a large prefill takes seconds."""
_SHARED_SECONDS = 1.0
"""The maximum age of a reply that another caller gets. Each costs the engine time between two steps, and one
with shared prefixes costs a walk of the prefix tree: 43 ms at 15,000 nodes."""


class _Query:
    """An inspection that was sent; several tasks may wait for its reply."""

    def __init__(self, asked: Inspect) -> None:
        self.asked = asked
        self.sent_at = trio.current_time()
        self.reply: Inspection | None = None
        self.done = trio.Event()
        self.waiters = 0


class Inspections:
    """Every caller gets one reply or one error, also when the engine dies meanwhile."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}
        self._closed = False
        self._shared: _Query | None = None
        """The last query without `clear`, open or answered."""

    async def inspect(self, clear: bool, top: int, head_tokens: int) -> Inspection:
        """Return the engine's contents: after an eviction with `clear`, else from an inspection that is at
        most a second old or still pending. Raise Unavailable if no reply arrives."""
        if clear:
            self._shared = None
            return await self._wait(self._ask(True, top, head_tokens))
        if (query := self._young(top, head_tokens, trio.current_time())) is None:
            query = self._shared = self._ask(False, top, head_tokens)
        return _cut(await self._wait(query), top, head_tokens)

    def answered(self, reply: Inspection) -> None:
        """Deliver a reply; the callers may have left."""
        if (query := self._open.pop(reply.query, None)) is not None:
            query.reply = reply
            query.done.set()

    def close(self) -> None:
        """End all open queries without a reply: the process has ended."""
        self._closed = True
        for query in self._open.values():
            query.done.set()
        self._open.clear()

    def _young(self, top: int, head_tokens: int, now: float) -> _Query | None:
        """Return the shared query if its reply, received or pending, has what a caller wants. A pending one
        has no age: a second query would not be answered sooner."""
        if (query := self._shared) is None or query.asked.top < top or query.asked.head_tokens < head_tokens:
            return None
        if query.done.is_set():
            return query if now - query.sent_at < _SHARED_SECONDS else None
        return query if query.asked.query in self._open else None

    def _ask(self, clear: bool, top: int, head_tokens: int) -> _Query:
        query = _Query(Inspect(next(self._numbers), clear, top, head_tokens))
        if self._closed:
            query.done.set()
        else:
            self._send(query.asked)
            self._open[query.asked.query] = query
        return query

    async def _wait(self, query: _Query) -> Inspection:
        query.waiters += 1
        try:
            with trio.move_on_after(_REPLY_SECONDS):
                await query.done.wait()
        finally:
            query.waiters -= 1
            if not query.waiters:
                self._open.pop(query.asked.query, None)
        if query.reply is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return query.reply


def _cut(inspection: Inspection, top: int, head_tokens: int) -> Inspection:
    if inspection.cache is None:
        return inspection
    prefixes = [_cut_prefix(prefix, head_tokens) for prefix in inspection.cache.shared_prefixes[:top]]
    cache: CacheReport = msgspec.structs.replace(inspection.cache, shared_prefixes=prefixes)
    return msgspec.structs.replace(inspection, cache=cache)


def _cut_prefix(prefix: PrefixReport, head_tokens: int) -> PrefixReport:
    return msgspec.structs.replace(prefix, head=prefix.head[:head_tokens])
