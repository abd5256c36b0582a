"""The first frame of a connection over TCP, and who is let in by it. Pure: without I/O.

A connection is worth nothing until its Hello names a token that somebody waits for. A token is 32 random
bytes, is good for one connection in one role, and is compared in constant time.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from scheduler.errors import LinkError
from scheduler.link.messages import PROTOCOL_VERSION
from scheduler.link.wire_struct import WireStruct

MOST_HELLO_BYTES = 1024
"""Of a Hello's body."""
_TOKEN_BYTES = 32


def rank_role(rank: int) -> str:
    """The role of a connection to rank 0 of an engine over several machines."""
    return f"rank {rank}"


class Hello(WireStruct, frozen=True, tag="hello"):
    """The dialer's first frame. These fields and their order are the same in every version, so that another
    version can be refused by name. Answered by one HelloReply, or by the end of the connection."""

    version: int
    token: str
    role: str
    """What the connection is for: a token is good for one role."""
    host: str
    """The dialer's machine, for people."""

    def __repr__(self) -> str:
        return f"Hello(version={self.version}, role={self.role!r}, host={self.host!r})"


class HelloReply(WireStruct, frozen=True, tag="hello_reply"):
    """`refusal`: why the connection is about to be closed; empty: it is let in."""

    version: int
    refusal: str = ""


class HelloRefused(Exception):
    """The dialer is not let in: a sentence for the operator."""


@dataclass(eq=False, slots=True)
class Expected:
    """One connection that somebody waits for."""

    role: str
    token: str = field(default_factory=lambda: secrets.token_hex(_TOKEN_BYTES), repr=False)


_E = TypeVar("_E", bound=Expected)


class Expectations(Generic[_E]):
    """The connections that are waited for."""

    def __init__(self) -> None:
        self._expected: list[_E] = []

    def __len__(self) -> int:
        return len(self._expected)

    def add(self, expected: _E) -> None:
        self._expected.append(expected)

    def forget(self, expected: _E) -> None:
        """Nobody waits for it any more. It may have come already."""
        if expected in self._expected:
            self._expected.remove(expected)

    def take(self, hello: Hello) -> _E:
        """Return what this Hello is waited for as, once. Raise HelloRefused."""
        found: _E | None = None
        for expected in self._expected:
            # All are compared, each in constant time: the time tells nothing of a token.
            same = secrets.compare_digest(expected.token.encode(), hello.token.encode())
            if same and expected.role == hello.role:
                found = expected
        if found is None:
            raise HelloRefused("its token is wrong, was used before, or is not waited for any more")
        self.forget(found)
        return found


def version_refusal(hello: Hello) -> str:
    """Return why a dialer with the right token is refused; empty: it is not."""
    if hello.version == PROTOCOL_VERSION:
        return ""
    return f"host {hello.host} speaks protocol {hello.version}, this server {PROTOCOL_VERSION}"


def read_hello(body: bytes) -> Hello:
    """Raise LinkError."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LinkError(f"its first frame is no Hello: {error}") from error


_decoder = msgspec.msgpack.Decoder(Hello)
