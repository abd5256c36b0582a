"""Write to the client, each piece with a deadline, and track whether the stream is intact."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import trio


class ClientGone(OSError):
    """No more can be written: the client left, or is being disconnected. ASGI 2.4 has `send` raise it."""


class WriteStalled(ClientGone):
    """The client read nothing for the write timeout."""


class Outbound:
    """The sending side of one connection. Each piece of a write has `write_seconds`; after one that fails,
    nothing more is written."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, write_seconds: float, piece_bytes: int) -> None:
        self._stream = stream
        self._write_seconds = write_seconds
        self._piece_bytes = piece_bytes
        self.intact = True
        """False during a write, and after one that did not finish: the number of bytes sent is unknown, so
        nothing may follow."""

    async def write(self, data: bytes) -> None:
        """Write and return. Raise WriteStalled or ClientGone."""
        if not self.intact:
            raise ClientGone("an earlier write to this client did not end")
        self.intact = False
        if len(data) <= self._piece_bytes:
            await self._write_piece(data)
        else:
            view = memoryview(data)
            for start in range(0, len(data), self._piece_bytes):
                await self._write_piece(view[start : start + self._piece_bytes])
        self.intact = True

    async def _write_piece(self, piece: bytes | memoryview) -> None:
        with trio.move_on_after(self._write_seconds) as deadline:
            try:
                await self._stream.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ClientGone("the client has left") from error
        if deadline.cancelled_caught:
            raise WriteStalled(f"the client took nothing for {self._write_seconds:g} s")

    async def end(self) -> None:
        """Half-close the stream: nothing follows. The client may still be sending."""
        if self.intact:
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.intact = False

    async def abort(self) -> None:
        """Reset the connection instead of closing it in an orderly way.

        After an orderly close the kernel would hold the unread bytes of a client that does not read, for
        minutes; and a body without a length would look complete.
        """
        self.intact = False
        if isinstance(self._stream, trio.SocketStream):
            # A close with a linger time of zero drops what is queued and sends RST. macOS refuses the option
            # on a socket that the client has already reset, where nothing is left to drop.
            with suppress(OSError):
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self._stream)
