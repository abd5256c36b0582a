"""Writes to the client, each with a deadline; knows whether the stream is still whole after them."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import trio


class ClientGone(OSError):
    """Nothing can be written any more: the client left, or is being cut. What ASGI 2.4 has `send` raise."""


class WriteStalled(ClientGone):
    """The client took nothing for as long as one write may take."""


class Outbound:
    """The sending side of one connection. Each piece of a write has `write_seconds`; the first that fails is
    the last."""

    def __init__(self, stream: trio.abc.HalfCloseableStream, write_seconds: float, piece_bytes: int) -> None:
        self._stream = stream
        self._write_seconds = write_seconds
        self._piece_bytes = piece_bytes
        self.intact = True
        """False while a write is under way and for ever after one that did not end: how much of it left is
        unknown, so nothing may follow it."""

    async def write(self, data: bytes) -> None:
        """Raises WriteStalled or ClientGone."""
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
        """Half-closes: nothing follows. The client may still be sending."""
        if self.intact:
            try:
                await self._stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.intact = False

    async def abort(self) -> None:
        """Reset instead of an orderly end.

        An orderly end would leave the kernel holding the unread bytes of a client that does not read, for
        minutes; and to the reader of a body without length it would mean that the body is whole.
        """
        self.intact = False
        if isinstance(self._stream, trio.SocketStream):
            # A close with a linger time of zero drops what is queued and sends RST. macOS refuses the option
            # on a socket that the client has reset already, where there is nothing left to drop.
            with suppress(OSError):
                self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self._stream)
