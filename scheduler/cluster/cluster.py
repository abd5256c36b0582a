"""The machines of a Ray cluster as the server sees them, and the agent that speaks with Ray.

Ray has the list of machines, and keeps on each unit of their resource `mlx` the command that joins this
server. An engine that runs needs neither Ray nor the agent: when they are gone, only new machines get
none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum

import structlog
import trio

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Node,
    Nodes,
    Place,
    server_inbound,
)
from scheduler.errors import LinkError
from scheduler.link.framing import encode
from scheduler.link.process import LaunchFailed
from scheduler.link.side_process import SideLauncher, SideProcess
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("cluster")
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""An agent that connects to Ray, or has been connected, gives a sign of life or a reason before this."""
_READ_BYTES = 1 << 16


class ClusterState(StrEnum):
    CONNECTING = "connecting"
    """The agent has not sent anything yet."""
    CONNECTED = "connected"
    LOST = "lost"
    """The agent or Ray is gone. Engines go on; machines that come get none."""


def agent_process(environment: Mapping[str, str], ray_address: str) -> SideProcess:
    """Return the launcher of `python -m scheduler.cluster.agent`."""
    # Ray reports nothing to its makers, and on a Mac joins a cluster at all.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    # Its own log lines are for debugging; the last one may say why the agent ended.
    arguments = ("--ray", ray_address)
    return SideProcess("agent", "scheduler.cluster.agent", arguments, {**quiet, **environment}, logging.DEBUG)


class RayCluster:
    """`run` must be running."""

    def __init__(self, agent: SideLauncher, metrics: Metrics) -> None:
        self._agent = agent
        self._metrics = metrics
        self._telemetry = Containment(metrics)
        self.state = ClusterState.CONNECTING
        self.reason: str | None = None
        """Why it is lost."""
        self.restarts = 0
        self.address: str | None = None
        """This machine's, as Ray has it."""
        self.nodes: dict[str, Node] = {}
        self._refusal = ""
        """Why the agent said that it cannot work."""
        self._place: Place | None = None

    async def run(self, place: Place) -> None:
        """Never returns by itself; cancel it to end the agent. `place`: how engines join this server."""
        self._place = place
        backoff = BACKOFF_FIRST_SECONDS
        while True:
            try:
                last_words = await self._agent.run(self._session)
            except LaunchFailed as error:
                last_words = str(error)
            if self.state is ClusterState.CONNECTED:
                backoff = BACKOFF_FIRST_SECONDS
            self._lost(last_words or "the agent ended without a word", backoff)
            await trio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_LIMIT_SECONDS)

    def _lost(self, last_words: str, backoff: float) -> None:
        reason = self._refusal or last_words
        if reason != self.reason:
            _log.error("cluster_lost", reason=reason, restart_in_seconds=backoff)
        self.state, self.reason, self._refusal = ClusterState.LOST, reason, ""
        self.restarts += 1
        self._telemetry.sample(self._metrics.agent_restarts.inc)

    async def _session(self, stream: trio.abc.Stream) -> None:
        """Return when the agent is gone or hangs."""
        assert self._place is not None
        reader = server_inbound()
        try:
            await stream.send_all(encode(self._place))
            while True:
                data: bytes | bytearray = b""
                with trio.move_on_after(SILENCE_SECONDS) as limit:
                    data = await stream.receive_some(_READ_BYTES)
                if limit.cancelled_caught:
                    self._refusal = f"the agent has sent nothing for {SILENCE_SECONDS:g} s"
                if not data:
                    return
                for message in reader.feed(data):
                    self._take(message)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except LinkError as error:
            self._refusal = f"the agent breaks the protocol: {error}"

    def _take(self, message: FromAgent) -> None:
        match message:
            case Nodes(address=address, nodes=nodes):
                if self.state is not ClusterState.CONNECTED:
                    _log.info("cluster_joined", address=address)
                self.state, self.reason, self.address = ClusterState.CONNECTED, None, address
                self._seen({node.id: node for node in nodes})
            case AgentRefused(reason=reason):
                self._refusal = reason

    def _seen(self, nodes: dict[str, Node]) -> None:
        for node in nodes.values():
            if node.id not in self.nodes:
                _log.info("node_joined", machine=node.machine, address=node.address, places=node.places)
        for node in self.nodes.values():
            if node.id not in nodes:
                _log.warning("node_left", machine=node.machine, address=node.address)
        self.nodes = nodes
        self._telemetry.sample(self._metrics.cluster_nodes.set, len(nodes))
