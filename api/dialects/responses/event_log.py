"""The events of a response in the background, which each connection of its client may read from any place."""

from __future__ import annotations

import msgspec
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.answers import sse
from api.answers.whole_answer import MAX_HELD_BYTES

_EVENT_BYTES = 48
"""The interpreter's overhead for an event."""
_SENT_BYTES = 1 << 16


class EventLog:
    """The events of one stream, each at the place that is its sequence number. Those of a stream that
    becomes too large are given up: its readers get an error, and can ask for the response itself."""

    def __init__(self, max_bytes: int = MAX_HELD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._events: list[bytes] = []
        self._begun: list[bytes] = []
        """The parts of an event that is not complete."""
        self._comments = 0
        self._comment = b""
        self._readers = trio.lowlevel.ParkingLot()
        self.bytes = 0
        self.is_over = False
        self.is_lost = False

    def __len__(self) -> int:
        return len(self._events)

    def add(self, text: bytes) -> None:
        """Add what a stream sends. Its JSON has no line breaks, so an empty line ends an event."""
        if self.is_lost:
            return
        self._begun.append(text)
        if sse.AFTER_DATA not in text:
            return
        *blocks, rest = b"".join(self._begun).split(sse.AFTER_DATA)
        self._begun = [rest] if rest else []
        for block in blocks:
            if block.startswith(b":"):
                self._comments += 1
                self._comment = block + sse.AFTER_DATA
            else:
                self._events.append(block + sse.AFTER_DATA)
                self.bytes += len(block) + _EVENT_BYTES
        if self.bytes > self._max_bytes:
            self.is_lost = True
            self._events.clear()
            self._begun.clear()
        self._readers.unpark_all()

    def close(self) -> None:
        self.is_over = True
        self._readers.unpark_all()

    def read(self, place: int) -> tuple[bytes, int]:
        """Return events from `place` on, as many as are sent at once, and the place behind them."""
        found: list[bytes] = []
        size = 0
        while place < len(self._events) and size < _SENT_BYTES:
            found.append(self._events[place])
            size += len(found[-1])
            place += 1
        return b"".join(found), place

    async def news(self) -> bytes:
        """Wait for the next events or the end, or return a comment that came before."""
        comments = self._comments
        await self._readers.park()
        return self._comment if self._comments > comments else b""


class LoggedStream(Response):
    """Sends a log's events to one client. If that leaves, the response goes on."""

    def __init__(self, log: EventLog, after: int = -1) -> None:
        """`after`: the sequence number of the last event that the client has."""
        super().__init__(headers=sse.HEADERS)
        del self.headers["content-length"]
        self._log = log
        self._place = after + 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        log, comment = self._log, b""
        while True:
            text, self._place = log.read(self._place)
            if log.is_lost:
                await send({"type": "http.response.body", "body": _lost(self._place)})
                return
            if text or comment:
                await send({"type": "http.response.body", "body": text or comment, "more_body": True})
                comment = b""
                # Without a checkpoint, this loop might never let another task run.
                await trio.lowlevel.checkpoint()
            elif log.is_over:
                await send({"type": "http.response.body", "body": b""})
                return
            else:
                comment = await log.news()


def _lost(place: int) -> bytes:
    error = {
        "type": "error",
        "sequence_number": place,
        "code": "stream_too_large",
        "message": "the stream is too large to be kept: the response goes on, ask for it without `stream`",
        "param": None,
    }
    return sse.named(b"error", msgspec.json.encode(error))
