"""The events of a response in the background, which each connection of its client may read from any place."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers import sse
from api.answers.whole_answer import MAX_HELD_BYTES

_PART_BYTES = 64
"""The interpreter's overhead for a part of an event."""
_SENT_BYTES = 1 << 16


class EventLog:
    """The events of one stream, by their sequence numbers, from 0. Those of a stream that
    becomes too large are given up: its readers get an error, and can ask for the response itself."""

    def __init__(
        self, max_bytes: int = MAX_HELD_BYTES, held: Counter[str] | None = None, tenant: str = ""
    ) -> None:
        """`held`: the bytes of all logs that grow, by tenant, whose bound is `max_bytes` as well."""
        self._max_bytes = max_bytes
        self._held = Counter() if held is None else held
        self._tenant = tenant
        self._parts: list[bytes] = []
        """The events. A large one is in parts: joined, it would be copied in one turn of the loop."""
        self._starts: list[int] = []
        """Where each event begins."""
        self._begun: list[bytes] = []
        """The parts of an event that is not complete."""
        self._readers = trio.lowlevel.ParkingLot()
        self.bytes = 0
        self.is_over = False
        self.is_lost = False

    def add(self, text: bytes) -> None:
        """Add what a stream sends. Its JSON has no line breaks, so an empty line ends an event."""
        if self.is_lost:
            return
        if sse.AFTER_DATA not in text:
            self._begun.append(text)
            return
        *blocks, rest = text.split(sse.AFTER_DATA)
        for block in blocks:
            self._add_block([*self._begun, block + sse.AFTER_DATA])
            self._begun = []
        if rest:
            self._begun.append(rest)
        if self._held[self._tenant] > self._max_bytes:
            self.is_lost = True
            self._parts.clear()
            self._give_back()
        self._readers.unpark_all()

    def _add_block(self, parts: list[bytes]) -> None:
        self._starts.append(len(self._parts))
        self._parts += parts
        size = sum(len(part) + _PART_BYTES for part in parts)
        self.bytes += size
        self._held[self._tenant] += size

    def _give_back(self) -> None:
        self._held[self._tenant] -= self.bytes
        if not self._held[self._tenant]:
            del self._held[self._tenant]

    def close(self) -> None:
        if not self.is_lost:
            self._give_back()
        self.is_over = True
        self._readers.unpark_all()

    def place_of(self, number: int) -> int | None:
        """Return where an event begins, or None if it is still to come."""
        return self._starts[number] if number < len(self._starts) else None

    def number_at(self, place: int) -> int:
        """Return the number of the first event that begins there or later."""
        return bisect_left(self._starts, place)

    def read(self, place: int) -> tuple[bytes, int]:
        """Return what is sent at once from `place` on, and the place behind it."""
        end, size = place, 0
        while end < len(self._parts) and (end == place or size + len(self._parts[end]) <= _SENT_BYTES):
            size += len(self._parts[end])
            end += 1
        return b"".join(self._parts[place:end]), end

    async def news(self) -> None:
        """Wait for the next events or the end."""
        await self._readers.park()


class LoggedStream(Response):
    """Sends a log's events to one client. If that leaves, the response goes on."""

    def __init__(self, log: EventLog, keep_alive_seconds: float, after: int = -1) -> None:
        """`after`: the sequence number of the last event that the client has."""
        super().__init__(headers=sse.HEADERS)
        del self.headers["content-length"]
        self._log = log
        self._keep_alive_seconds = keep_alive_seconds
        self._next = after + 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        log = self._log
        place: int | None = None
        while True:
            place = log.place_of(self._next) if place is None else place
            if log.is_lost:
                number = self._next if place is None else log.number_at(place)
                await send({"type": "http.response.body", "body": _lost(number)})
                return
            text, place = (b"", None) if place is None else log.read(place)
            if text:
                await send({"type": "http.response.body", "body": text, "more_body": True})
                # Without a checkpoint, this loop might never let another task run.
                await trio.lowlevel.checkpoint()
            elif log.is_over:
                await send({"type": "http.response.body", "body": b""})
                return
            else:
                with trio.move_on_after(self._keep_alive_seconds) as silence:
                    await log.news()
                if silence.cancelled_caught:
                    await send({"type": "http.response.body", "body": sse.COMMENT, "more_body": True})


def _lost(number: int) -> bytes:
    error = {
        "type": "error",
        "sequence_number": number,
        "code": "stream_too_large",
        "message": "the stream is too large to be kept: the response goes on, ask for it without `stream`",
        "param": None,
    }
    return sse.named(b"error", msgspec.json.encode(error))
