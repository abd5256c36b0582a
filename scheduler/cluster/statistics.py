"""The cluster at one moment, for operators.

A file of its own because what is reported needs neither Ray nor the process that asks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClusterState(StrEnum):
    CONNECTING = "connecting"
    """The agent has not said anything yet."""
    CONNECTED = "connected"
    LOST = "lost"
    """The agent or Ray is gone. Engines go on; none is started."""


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """A machine with places for engines. `living`: as Ray says; `engines`: the names of those on it."""

    machine: str
    address: str
    living: bool
    places: int
    engines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatistics:
    """`reason`: why it is lost. `dials`: where engines connect to; None: not known yet."""

    state: ClusterState
    reason: str | None
    dials: str | None
    agent_restarts: int
    nodes: tuple[NodeStatistics, ...]
