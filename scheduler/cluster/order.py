"""What a host process needs to start one engine for a front, and who starts host processes.

A file of its own because it is the seam between those who place engines (Ray, or a test) and the launcher
that talks to them: neither imports the other.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from scheduler.link.wire_struct import WireStruct


class HostOrder(WireStruct, frozen=True):
    """Its tokens are secrets: it reaches the host process by stdin, never by an argument or the environment,
    and its `repr` leaves them out."""

    addresses: tuple[str, ...]
    """Of the front, in the order in which to try them."""
    port: int
    host_token: str
    """64 hex digits, for one connection: the host process's own."""
    engine_token: str
    """64 hex digits, for one connection: the engine's."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that the engine gets beside those of its machine."""

    def __repr__(self) -> str:
        return f"HostOrder(addresses={self.addresses!r}, port={self.port})"

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def decode(data: bytes) -> HostOrder:
        """Raise msgspec.DecodeError."""
        return msgspec.msgpack.decode(data, type=HostOrder)


class HostStarter(Protocol):
    """Starts host processes on one machine."""

    async def start(self, order: HostOrder) -> None:
        """Start a host process with this order. It may connect before this returns.

        Raises LaunchFailed with the reason.
        """
        ...

    def describe(self) -> str:
        """The machine's name, for logs and operators."""
        ...
