"""A cluster without Ray: the test says which nodes there are, and an agent over memory reports them."""

from __future__ import annotations

import trio
import trio.testing

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    Nodes,
    RayNode,
    ServerAddress,
    agent_inbound,
)
from scheduler.processes.child_process import Exit, LaunchFailed, Talk
from scheduler.shared.framing import encode

ADDRESS = "10.0.0.1"
SIGN_OF_LIFE_SECONDS = 5.0


def node(machine: str, life: int = 1, places: int = 1) -> RayNode:
    """`life`: each time that a node joins, Ray gives it another id."""
    return RayNode(f"{machine}/{life}", machine, ADDRESS, ADDRESS, places)


class FakeRay:
    """Launches agents. The attributes may change while one runs."""

    def __init__(self, *nodes: RayNode) -> None:
        self.nodes = nodes
        self.refusal = ""
        """Why agents cannot work; empty: they can."""
        self.mute = False
        """Whether the agent hangs."""
        self.raw = b""
        """What the next agent sends instead of messages."""
        self.agents = 0
        self.places: list[ServerAddress] = []
        """What each agent was sent first."""
        self._scope = trio.CancelScope()

    def kill_agent(self) -> None:
        self._scope.cancel()

    async def run(self, talk: Talk) -> Exit:
        if self.refusal == "none can be launched":
            raise LaunchFailed("no process could be started")
        self.agents += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self._scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._agent, theirs, self._scope)
            await talk(ours)
            nursery.cancel_scope.cancel()
        return Exit(1, ("killed",))

    async def _agent(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        with scope:
            self.places += agent_inbound().feed(await stream.receive_some())
            if self.raw:
                await stream.send_all(self.raw)
                self.raw = b""
            if self.refusal:
                await self._send(stream, AgentRefused(self.refusal))
                scope.cancel()
            while True:
                if not self.mute:
                    await self._send(stream, Nodes(ADDRESS, self.nodes))
                await trio.sleep(SIGN_OF_LIFE_SECONDS)
        await stream.aclose()

    @staticmethod
    async def _send(stream: trio.abc.Stream, message: FromAgent) -> None:
        await stream.send_all(encode(message))
