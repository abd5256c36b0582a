"""The machines of a Ray cluster as the server sees them, and the agent that speaks with Ray.

Ray knows the machines, and runs an actor on each unit of their resource `mlx`, which keeps an engine of this
server alive. An engine that runs needs neither Ray nor the agent. Without the agent, machines that are added
get no engine; without Ray, an engine that ends is not started again either.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

import structlog
import trio

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Nodes,
    RayNode,
    ServerAddress,
    server_inbound,
)
from scheduler.errors import LinkError
from scheduler.processes.backoff import Backoff
from scheduler.processes.channel import EngineGone, FrameChannel
from scheduler.processes.child_process import ChildProcess, Exit, LaunchFailed, Talk
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("cluster")
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""An agent sends a sign of life or its reason to end within this time, also while it connects to Ray; one
that does not hangs, and is ended."""
_STOP_SECONDS = 2.0
"""Time from end of file to SIGKILL: the agent has nothing to clean up."""


class ClusterState(StrEnum):
    CONNECTING = "connecting"
    """The first agent has not reported the nodes yet."""
    CONNECTED = "connected"
    LOST = "lost"
    """The agent or Ray is gone. Engines that run continue; machines that are added get none."""


def agent_process(environment: Mapping[str, str], ray_address: str) -> ChildProcess:
    """Return the child process that runs `python -m scheduler.cluster.agent`."""
    # By default Ray sends usage statistics to its makers, and on a Mac refuses to join a cluster.
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    # The agent's stderr is logged for debugging; its last line may say why the agent ended.
    return ChildProcess(
        "agent",
        "scheduler.cluster.agent",
        ("--ray", ray_address),
        {**quiet, **environment},
        _STOP_SECONDS,
        stdout=subprocess.DEVNULL,
        level=logging.DEBUG,
    )


class RayCluster:
    """The nodes of a Ray cluster, as an agent reports them. `run` must be running."""

    def __init__(self, run_agent: Callable[[Talk], Awaitable[Exit]], metrics: Metrics) -> None:
        """`run_agent` runs one agent process and returns how it ended, as `ChildProcess.run` does."""
        self._run_agent = run_agent
        self._metrics = metrics
        self._telemetry = Containment(metrics)
        self.state = ClusterState.CONNECTING
        self.reason: str | None = None
        """Why the cluster is lost, or None if it is not."""
        self.restarts = 0
        self.address: str | None = None
        """This machine's address, as Ray has it; None before the first report."""
        self.nodes: dict[str, RayNode] = {}
        self._refusal = ""
        """Why the agent cannot work, as it reported or as this server found; empty if neither did."""
        self._server_address: ServerAddress | None = None

    async def run(self, server_address: ServerAddress) -> None:
        """Keep an agent running until cancelled. `server_address`: where engines join this server."""
        self._server_address = server_address
        backoff = Backoff(BACKOFF_FIRST_SECONDS, BACKOFF_LIMIT_SECONDS)
        while True:
            try:
                last_words = (await self._run_agent(self._talk)).last_words
            except LaunchFailed as error:
                last_words = str(error)
            if self.state is ClusterState.CONNECTED:
                backoff.lasted()
            self._lost(last_words or "the agent ended without a word", backoff.seconds)
            await trio.sleep(backoff.seconds)
            backoff.waited()

    def _lost(self, last_words: str, backoff: float) -> None:
        reason = self._refusal or last_words
        if reason != self.reason:
            _log.error("cluster_lost", reason=reason, restart_in_seconds=backoff)
        self.state, self.reason, self._refusal = ClusterState.LOST, reason, ""
        self.restarts += 1
        self._telemetry.sample(self._metrics.agent_restarts.inc)

    async def _talk(self, stream: trio.abc.Stream) -> bool:
        """Speak with the agent until it is gone, breaks the protocol or is silent. Return False also for a
        silent one: no stacks are asked of an agent that hangs in Ray."""
        assert self._server_address is not None
        channel = FrameChannel(stream, server_inbound())
        channel.send_nowait(self._server_address)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                await self._listen(channel)
                nursery.cancel_scope.cancel()
        except* LinkError as errors:
            self._refusal = f"the agent breaks the protocol: {errors.exceptions[0]}"
        except* EngineGone:
            pass
        return False

    async def _listen(self, channel: FrameChannel[FromAgent]) -> None:
        """Return when the agent has been silent for too long. Raise EngineGone, LinkError."""
        while True:
            with trio.move_on_after(SILENCE_SECONDS) as limit:
                message = await channel.receive()
            if limit.cancelled_caught:
                self._refusal = f"the agent has sent nothing for {SILENCE_SECONDS:g} s"
                return
            self._take(message)

    def _take(self, message: FromAgent) -> None:
        match message:
            case Nodes(address=address, nodes=nodes):
                if self.state is not ClusterState.CONNECTED:
                    _log.info("cluster_joined", address=address)
                self.state, self.reason, self.address = ClusterState.CONNECTED, None, address
                self._seen({node.id: node for node in nodes})
            case AgentRefused(reason=reason):
                self._refusal = reason

    def _seen(self, nodes: dict[str, RayNode]) -> None:
        for node in nodes.values():
            if node.id not in self.nodes:
                _log.info("node_joined", machine=node.machine, address=node.address, places=node.places)
        for node in self.nodes.values():
            if node.id not in nodes:
                _log.warning("node_left", machine=node.machine, address=node.address)
        self.nodes = nodes
        self._telemetry.sample(self._metrics.cluster_nodes.set, len(nodes))
