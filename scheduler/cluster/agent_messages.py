"""What the server and its agent send each other, in the frames of an engine's link (`shared/framing.py`)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from scheduler.shared.framing import FrameReader
from scheduler.shared.wire_struct import WireStruct


class RayNode(WireStruct, frozen=True):
    """A machine of the cluster that has places for engines."""

    id: str
    """Ray's id of the node: a new one each time it joins."""
    host: str
    """The machine's name."""
    name: str
    """The operator's name for the node; if there is none, Ray takes its address."""
    address: str
    places: int
    """Units of the resource `mlx` that it offers. Each unit gets one engine."""

    @property
    def machine(self) -> str:
        """Return the name by which its engines join: the operator's name for the node, or else the machine's.
        It stays the same when the node joins again."""
        return self.host if self.name == self.address else self.name

    def place(self, unit: int) -> str:
        """Return the name by which the engine of a unit joins (`engine/joining.py`)."""
        return self.machine if unit == 0 else f"{self.machine}:{unit}"


class ServerAddress(WireStruct, frozen=True, tag="place"):
    """The first message to the agent: keep an engine that joins this server on each place of each node."""

    addresses: tuple[str, ...]
    """The server's addresses in the order in which to try them; if empty, engines dial the address that Ray
    has of the agent's machine."""
    port: int
    token: str
    blas: str
    """The value of `--blas` for engines on those machines; it has an effect on a plain Linux CPU."""

    def __repr__(self) -> str:
        return f"ServerAddress(addresses={self.addresses!r}, port={self.port})"


class Nodes(WireStruct, frozen=True, tag="nodes"):
    """All nodes that live and have places. The first one means that the agent works; later ones come when
    something has changed, and every few seconds as a sign of life."""

    address: str
    """The address of the agent's machine, as the other nodes know it."""
    nodes: tuple[RayNode, ...]


class AgentRefused(WireStruct, frozen=True, tag="cannot"):
    """The agent cannot work, and ends; the text is a sentence for the operator that names the remedy."""

    reason: str


FromAgent: TypeAlias = Nodes | AgentRefused


def agent_inbound() -> FrameReader[ServerAddress]:
    """Return a reader for what the agent receives."""
    return FrameReader(msgspec.msgpack.Decoder(ServerAddress))


def server_inbound() -> FrameReader[FromAgent]:
    """Return a reader for what the server receives."""
    return FrameReader(msgspec.msgpack.Decoder(FromAgent))
