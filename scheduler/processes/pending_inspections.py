"""Inspections of one engine process: viewers share one reply a second."""

from __future__ import annotations

import msgspec
import trio

from scheduler.errors import Unavailable
from scheduler.processes.calls import Call, Calls
from scheduler.shared.messages import Inspect, Inspection
from scheduler.shared.reports import CacheReport, PrefixReport

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
        """Return the engine's contents, at most a second old; with `clear`, after evicting, with `unpin`,
        after releasing it. Raise Unavailable if no reply arrives."""
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
    prefixes = [_cut_prefix(prefix, head_tokens) for prefix in inspection.cache.trunks[:top]]
    cache: CacheReport = msgspec.structs.replace(inspection.cache, trunks=prefixes)
    return msgspec.structs.replace(inspection, cache=cache)


def _cut_prefix(prefix: PrefixReport, head_tokens: int) -> PrefixReport:
    return msgspec.structs.replace(prefix, head=prefix.head[:head_tokens])
