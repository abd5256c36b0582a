"""Reading the first frame of a TCP link, at either end.

Nobody knows yet who is at the other end: the frame is a kilobyte at most, and it has a deadline as a whole,
so that a peer that sends a byte now and then is not waited for. What follows the frame is left to be read.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from scheduler.errors import LinkError
from scheduler.shared.framing import LENGTH_BYTES
from scheduler.shared.hello import MOST_HELLO_BYTES


class FirstFrame:
    """Collects the frame, without I/O: `take` what a read of at most `wanted` bytes gave, while any are
    wanted."""

    def __init__(self) -> None:
        self._data = b""
        self._whole_bytes = LENGTH_BYTES
        self._has_length = False

    @property
    def wanted(self) -> int:
        """Return how many bytes are missing of what is known of the frame; 0: it is whole."""
        return self._whole_bytes - len(self._data)

    def take(self, piece: bytes | bytearray) -> None:
        """Raise LinkError for the end of the connection (an empty piece), and for a length that no first
        frame has."""
        if not piece:
            raise LinkError("it closed the connection before its first frame was whole")
        self._data += piece
        if not self._has_length and not self.wanted:
            length = int.from_bytes(self._data, "big")
            if length > MOST_HELLO_BYTES:
                raise LinkError(f"its first frame announces {length} bytes: it is no part of Penstock")
            self._has_length = True
            self._whole_bytes += length

    @property
    def body(self) -> bytes:
        return self._data[LENGTH_BYTES:]


def read_first_frame(
    link: socket.socket, ends_at: float, clock: Callable[[], float] = time.monotonic
) -> bytes:
    """Return the body of the first frame, waiting until `ends_at` of the clock for all of it. Changes the
    socket's timeout. Raise LinkError as `FirstFrame` does, TimeoutError and other OSErrors."""
    frame = FirstFrame()
    while frame.wanted:
        if (left := ends_at - clock()) <= 0:
            raise TimeoutError("its first frame did not come in time")
        link.settimeout(left)
        frame.take(link.recv(frame.wanted))
    return frame.body
