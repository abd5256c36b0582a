"""What the front and its agent tell each other. Frames as on an engine's link (`link/framing.py`)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from scheduler.cluster.order import HostOrder
from scheduler.link.framing import FrameReader
from scheduler.link.wire_struct import WireStruct


class Node(WireStruct, frozen=True):
    """A machine of the cluster that has places for engines."""

    id: str
    """Ray's, another one each time the node joins."""
    host: str
    """The machine's name."""
    name: str
    """What the operator calls the node; Ray takes its address if he does not."""
    address: str
    places: int
    """How much of the resource `mlx` it offers: an engine for each unit."""

    @property
    def machine(self) -> str:
        """For people, and the same when the node joins again."""
        return self.host if self.name in (self.host, self.address) else f"{self.host} ({self.name})"


class StartHost(WireStruct, frozen=True, tag="start"):
    """Start a host process on a node. Answered once, under its `start_id`."""

    start_id: int
    node_id: str
    order: HostOrder


class Nodes(WireStruct, frozen=True, tag="nodes"):
    """All nodes that live and have places. The first one says that the agent works; later ones come when
    something has changed, and every few seconds as a sign of life."""

    address: str
    """This machine's, as the others know it."""
    nodes: tuple[Node, ...]


class HostStarted(WireStruct, frozen=True, tag="started"):
    start_id: int


class HostRefused(WireStruct, frozen=True, tag="refused"):
    start_id: int
    reason: str


class AgentRefused(WireStruct, frozen=True, tag="cannot"):
    """The agent cannot work, and ends: a sentence that tells the operator what to do."""

    reason: str


ToAgent: TypeAlias = StartHost
FromAgent: TypeAlias = Nodes | HostStarted | HostRefused | AgentRefused


def agent_inbound() -> FrameReader[ToAgent]:
    """A reader for what the agent receives."""
    return FrameReader(msgspec.msgpack.Decoder(ToAgent))


def front_inbound() -> FrameReader[FromAgent]:
    """A reader for what the front receives."""
    return FrameReader(msgspec.msgpack.Decoder(FromAgent))
