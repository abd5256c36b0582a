"""The first frame of a connection over TCP, and which peers it admits. Pure: without I/O.

A connection is admitted only with the token of the process that it dials in its Hello: 32 random bytes,
compared in constant time.
"""

from __future__ import annotations

import secrets

import msgspec

from scheduler.errors import LinkError
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
