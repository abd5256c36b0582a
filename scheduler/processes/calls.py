"""Numbered questions to one process, and the tasks that wait for the answers. Viewers share one inspection a
second."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

import msgspec
import trio

from scheduler.errors import Unavailable
from scheduler.shared.messages import Inspect, Inspection, ToEngine
from scheduler.shared.reports import CacheReport, PrefixReport

_Reply = TypeVar("_Reply")


class Call(Generic[_Reply]):
    """A question that was sent; several tasks may wait for its reply."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent_at = trio.current_time()
        self.reply: _Reply | None = None
        self.done = trio.Event()
        self.waiters = 0


class Calls:
    """The open calls to one process. Each ends with one reply or none, also when the process ends
    meanwhile."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._numbers = count(1)
        self._open: dict[int, Call[Any]] = {}
        self._closed = False

    def send(self, question: Callable[[int], ToEngine], reply: type[_Reply]) -> Call[_Reply]:
        """Send `question(number)`, which is answered by a `reply` of that number."""
        call: Call[_Reply] = Call(next(self._numbers))
        if self._closed:
            call.done.set()
            return call
        self._send(question(call.number))
        self._open[call.number] = call
        return call

    async def wait(self, call: Call[_Reply], seconds: float) -> _Reply | None:
        """Return the reply, or None if none comes within `seconds` or the process has ended."""
        call.waiters += 1
        try:
            with trio.move_on_after(seconds):
                await call.done.wait()
        finally:
            call.waiters -= 1
            if not call.waiters:
                self._open.pop(call.number, None)
        return call.reply

    def is_open(self, call: Call[Any]) -> bool:
        """Return whether it was answered, or still may be."""
        return call.done.is_set() or call.number in self._open

    def answered(self, number: int, reply: object) -> bool:
        """Deliver a reply. Return whether a call waited for it; the callers may have left."""
        if (call := self._open.pop(number, None)) is None:
            return False
        call.reply = reply
        call.done.set()
        return True

    def close(self) -> None:
        """End all open calls without a reply: the process has ended."""
        self._closed = True
        for call in self._open.values():
            call.done.set()
        self._open.clear()


_REPLY_SECONDS = 30.0
"""The engine replies between two steps, and a step of a large prefill takes seconds."""
_SHARED_SECONDS = 1.0
"""The maximum age of a reply that another caller gets. Each costs the engine time between two steps, and one
with shared prefixes costs a walk of the prefix tree: 43 ms at 15,000 nodes."""


class Inspections:
    """Every caller gets one reply or one error, also when the engine dies meanwhile."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._shared: tuple[Inspect, Call[Inspection]] | None = None
        """The last query without `clear`, open or answered."""

    async def inspect(self, clear: bool, top: int, head_tokens: int, unpin: str = "") -> Inspection:
        """Return the engine's contents: after an eviction with `clear`, after the release of a pin with
        `unpin`, else from an inspection that is at most a second old or still pending. Raise Unavailable if
        no reply arrives."""
        if clear or unpin:
            self._shared = None
            return await self._wait(self._send(Inspect(0, clear, top, head_tokens, unpin)))
        if (call := self._young(top, head_tokens, trio.current_time())) is None:
            wanted = Inspect(0, False, top, head_tokens)
            call = self._send(wanted)
            self._shared = wanted, call
        return _cut(await self._wait(call), top, head_tokens)

    def _young(self, top: int, head_tokens: int, now: float) -> Call[Inspection] | None:
        """Return the shared query if its reply, received or pending, has what a caller wants. A pending one
        has no age: a second query would not be answered sooner."""
        if self._shared is None:
            return None
        sent, call = self._shared
        is_fresh = not call.done.is_set() or now - call.sent_at < _SHARED_SECONDS
        has_all = sent.top >= top and sent.head_tokens >= head_tokens
        return call if is_fresh and has_all and self._calls.is_open(call) else None

    def _send(self, wanted: Inspect) -> Call[Inspection]:
        return self._calls.send(lambda number: msgspec.structs.replace(wanted, query=number), Inspection)

    async def _wait(self, call: Call[Inspection]) -> Inspection:
        if (reply := await self._calls.wait(call, _REPLY_SECONDS)) is None:
            raise Unavailable("the engine did not answer", retry_after_seconds=1.0)
        return reply


def _cut(inspection: Inspection, top: int, head_tokens: int) -> Inspection:
    if inspection.cache is None:
        return inspection
    prefixes = [_cut_prefix(prefix, head_tokens) for prefix in inspection.cache.shared_prefixes[:top]]
    cache: CacheReport = msgspec.structs.replace(inspection.cache, shared_prefixes=prefixes)
    return msgspec.structs.replace(inspection, cache=cache)


def _cut_prefix(prefix: PrefixReport, head_tokens: int) -> PrefixReport:
    return msgspec.structs.replace(prefix, head=prefix.head[:head_tokens])
