"""The server's end of the link: messages over a trio stream.

Sending never waits: commands are small, at most two per request, and a writer task sends them. One task
reads, and it must never wait for a client: when the link's buffer is full of unread frames the engine blocks
in its send, and every stream with it.
"""

from __future__ import annotations

from collections import deque

import trio

from scheduler.shared.framing import encode, server_inbound
from scheduler.shared.messages import FromEngine
from scheduler.shared.wire_struct import WireStruct

_READ_BYTES = 1 << 18


class EngineGone(Exception):
    """The other end is closed: the process there has ended or is ending."""


class Channel:
    """Messages to and from one engine process."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._reader = server_inbound()
        self._received: deque[FromEngine] = deque()
        self._unsent: deque[bytes] = deque()
        self._wake_writer = trio.Event()
        self.unresponsive = False
        """Set if the engine is hung: the launcher then kills it without waiting for a clean exit."""

    def send_nowait(self, message: WireStruct) -> None:
        """Queue a message for the writer. After the process's death it is dropped silently: `receive` reports
        the death. Raise LinkError for a message above the bound of frames."""
        self._unsent.append(encode(message))
        self._wake_writer.set()

    async def receive(self) -> FromEngine:
        """Return the next message. Raise EngineGone at end of file, LinkError for bytes that are not a
        message."""
        while not self._received:
            try:
                data = await self._stream.receive_some(_READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise EngineGone from error
            if not data:
                raise EngineGone
            self._received.extend(self._reader.feed(data))
        return self._received.popleft()

    async def write_forever(self) -> None:
        """The writer task; returns when the process is gone."""
        while True:
            while self._unsent:
                batch = b"".join(self._unsent)
                self._unsent.clear()
                try:
                    await self._stream.send_all(batch)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return
            self._wake_writer = trio.Event()
            await self._wake_writer.wait()
