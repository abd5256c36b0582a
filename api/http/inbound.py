"""Read the client's bytes ahead of the parser, up to a bound, to notice a disconnect during a response.

Two readers alternate and never overlap: the connection's loop calls `read` between requests, and `pump` runs
as a task during a response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

_READ_BYTES = 64 * 1024


class Inbound:
    """The receiving side of one connection, with a bounded buffer of bytes that were read ahead."""

    def __init__(self, stream: trio.abc.ReceiveStream, read_ahead_bytes: int) -> None:
        self._stream = stream
        self._read_ahead_bytes = read_ahead_bytes
        self._ahead = bytearray()
        self._arrived = trio.lowlevel.ParkingLot()
        self._taken = trio.lowlevel.ParkingLot()
        self.ended = False
        """Whether the client has closed, reset, or shut down its sending side."""

    @property
    def has_read_ahead(self) -> bool:
        return bool(self._ahead)

    async def read(self, max_bytes: int = _READ_BYTES) -> bytes:
        """Return what was read ahead, else what comes next; b"" at the end."""
        if self._ahead:
            taken = bytes(self._ahead[:max_bytes])
            del self._ahead[:max_bytes]
            return taken
        return await self._receive(min(max_bytes, _READ_BYTES))

    async def pump(self, on_end: Callable[[], Awaitable[None]]) -> None:
        """Read until the client ends or the buffer is full; continue when some of it is taken."""
        while not self.ended:
            room = self._read_ahead_bytes - len(self._ahead)
            if room <= 0:
                await self._taken.park()
                continue
            data = await self._receive(min(room, _READ_BYTES))
            self._ahead += data
            if not data:
                await on_end()
            self._arrived.unpark_all()

    def take_nowait(self) -> bytes:
        """Return all that was read ahead, or b""."""
        if not self._ahead:
            return b""
        taken = bytes(self._ahead)
        self._ahead.clear()
        self._taken.unpark_all()
        return taken

    async def wait_arrival(self) -> None:
        """Return when more bytes have arrived, the client has ended, or `wake` was called; only while `pump`
        runs."""
        await self._arrived.park()

    def wake(self) -> None:
        self._arrived.unpark_all()

    async def discard(self) -> None:
        """Read and drop to the end."""
        self._ahead.clear()
        while not self.ended:
            await self._receive(_READ_BYTES)

    async def _receive(self, max_bytes: int) -> bytes:
        if self.ended:
            return b""
        try:
            data = bytes(await self._stream.receive_some(max_bytes))
        except trio.BrokenResourceError:
            # A reset is a disconnect like any other.
            data = b""
        self.ended = not data
        return data
