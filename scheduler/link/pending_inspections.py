"""Inspect queries sent to the engine, and the tasks that wait for the replies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec
import trio

from scheduler.errors import Unavailable
from scheduler.link.messages import Inspect, Inspection
from scheduler.link.reports import CacheReport, PrefixReport

_REPLY_SECONDS = 30.0
"""The engine replies between two steps, and a step of a large prefill takes seconds."""
_SHARED_SECONDS = 1.0
"""The maximum age of a reply that another caller gets. Each costs the engine time between two steps, and one
with shared prefixes costs a walk of the prefix tree: 43 ms at 15,000 nodes."""


class _Query:
    """A query that was sent; several callers may wait for its reply."""

    def __init__(self, inspect: Inspect, sent_at: float) -> None:
        self.inspect = inspect
        self.sent_at = sent_at
        self.waiters = 0
        self.reply: Inspection | None = None
        self.done = trio.Event()


class PendingInspections:
    """Every caller gets one reply or one error, also when the engine dies meanwhile."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._open: dict[int, _Query] = {}
        self._shared: _Query | None = None
        """The last query without `clear`, open or answered."""

    async def inspect(
        self, send: Callable[[Inspect], None], clear: bool, top: int, head_tokens: int, unpin: str = ""
    ) -> Inspection:
        """Return the engine's contents, at most a second old; with `clear`, after evicting, with `unpin`,
        after releasing it. Raise Unavailable
        if no reply arrives."""
        if clear or unpin:
            self._shared = None
            return await self._wait(self._send_query(send, Inspect(0, clear, top, head_tokens, unpin)))
        query = self._shared
        if query is None or not _covers(query, top, head_tokens, trio.current_time()):
            query = self._shared = self._send_query(send, Inspect(0, False, top, head_tokens))
        return _cut(await self._wait(query), top, head_tokens)

    def answered(self, inspection: Inspection) -> None:
        """Deliver a reply. The callers may have left."""
        if (query := self._open.pop(inspection.query, None)) is not None:
            query.reply = inspection
            query.done.set()

    def engine_lost(self) -> None:
        for query in self._open.values():
            query.done.set()
        self._open.clear()
        self._shared = None

    def _send_query(self, send: Callable[[Inspect], None], wanted: Inspect) -> _Query:
        inspect: Inspect = msgspec.structs.replace(wanted, query=next(self._numbers))
        send(inspect)
        query = self._open[inspect.query] = _Query(inspect, trio.current_time())
        return query

    async def _wait(self, query: _Query) -> Inspection:
        query.waiters += 1
        try:
            with trio.move_on_after(_REPLY_SECONDS):
                await query.done.wait()
        finally:
            query.waiters -= 1
            if not query.waiters and not query.done.is_set():
                self._forget(query)
        if query.reply is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return query.reply

    def _forget(self, query: _Query) -> None:
        self._open.pop(query.inspect.query, None)
        if self._shared is query:
            self._shared = None


def _covers(query: _Query, top: int, head_tokens: int, now: float) -> bool:
    """Whether the reply, received or pending, has what a caller wants. A pending one has no age: a second
    query would not be answered sooner."""
    is_fresh = not query.done.is_set() or now - query.sent_at < _SHARED_SECONDS
    return is_fresh and query.inspect.top >= top and query.inspect.head_tokens >= head_tokens


def _cut(inspection: Inspection, top: int, head_tokens: int) -> Inspection:
    if inspection.cache is None:
        return inspection
    prefixes = [_cut_prefix(prefix, head_tokens) for prefix in inspection.cache.trunks[:top]]
    cache: CacheReport = msgspec.structs.replace(inspection.cache, trunks=prefixes)
    return msgspec.structs.replace(inspection, cache=cache)


def _cut_prefix(prefix: PrefixReport, head_tokens: int) -> PrefixReport:
    return msgspec.structs.replace(prefix, head=prefix.head[:head_tokens])
