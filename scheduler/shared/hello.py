"""The first frame of a connection over TCP, at either end, and which peers it admits.

Nobody knows yet who is at the other end: the frame is a kilobyte at most, and it has a deadline as a whole,
so that a peer that sends a byte now and then is not waited for. What follows the frame is left to be read. A
connection is admitted only with the token of the process that it dials in its Hello: 32 random bytes,
compared in constant time.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable

import msgspec

from scheduler.errors import LinkError
from scheduler.shared.framing import LENGTH_BYTES
from scheduler.shared.messages import PROTOCOL_VERSION
from scheduler.shared.wire_struct import WireStruct

MOST_HELLO_BYTES = 1024
"""The bound of a Hello's body."""
TOKEN_BYTES = 32
ENGINE_ROLE = "engine"
"""The role of a connection to the server: a machine that offers its device for an engine."""


class Hello(WireStruct, frozen=True, tag="hello"):
    """The dialer's first frame. These fields and their order are the same in every version, so that another
    version can be refused by name. Answered by one HelloReply, or by the end of the connection."""

    version: int
    token: str
    role: str
    """What the connection is for."""
    host: str
    """The name of the dialer's machine, with its device where that is not the first one."""

    def __repr__(self) -> str:
        return f"Hello(version={self.version}, role={self.role!r}, host={self.host!r})"


class HelloReply(WireStruct, frozen=True, tag="hello_reply"):
    """`refusal`: why the connection is about to be closed, or an empty string if it is let in."""

    version: int
    refusal: str = ""


class HelloRefused(Exception):
    """The dialer is not let in: a sentence for the operator."""


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def check_hello(hello: Hello, token: str) -> None:
    """Raise HelloRefused unless this Hello is an engine's, with the token and of this version."""
    # In constant time: the time that a refusal takes reveals nothing of the token.
    same = secrets.compare_digest(token.encode(), hello.token.encode())
    if not same or hello.role != ENGINE_ROLE:
        raise HelloRefused("its token is wrong, or nobody waits for it")
    if hello.version != PROTOCOL_VERSION:
        raise HelloRefused(
            f"host {hello.host} speaks protocol {hello.version}, this server {PROTOCOL_VERSION}"
        )


def read_hello(body: bytes) -> Hello:
    """Return the Hello in the first frame's body. Raise LinkError if it is none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LinkError(f"its first frame is no Hello: {error}") from error


_decoder = msgspec.msgpack.Decoder(Hello)


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
