"""A cluster without Ray: the test says which nodes there are, and an agent over memory reports them."""

from __future__ import annotations

import trio
import trio.testing
from scheduler.cluster.order import HostOrder, HostStarter

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    HostRefused,
    HostStarted,
    Node,
    Nodes,
    StartHost,
    agent_inbound,
)
from scheduler.link.framing import encode
from scheduler.link.process import Exit, LaunchFailed, Session
from scheduler.link.side_process import SideSession
from tests.fakes.loopback_engine import LoopbackLauncher

ADDRESS = "10.0.0.1"
SIGN_OF_LIFE_SECONDS = 5.0
_TOKEN = "00" * 32


def node(machine: str, life: int = 1, places: int = 1) -> Node:
    """`life`: each time that a node joins, Ray gives it another id."""
    return Node(f"{machine}/{life}", machine, ADDRESS, ADDRESS, places)


class FakeRay:
    """Launches agents. The attributes may change while one runs."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes
        self.refusal = ""
        """Why agents cannot work; empty: they can."""
        self.start_refusal = ""
        """Why host processes are not started; empty: they are."""
        self.mute = False
        """Whether the agent hangs."""
        self.raw = b""
        """What the next agent says instead of messages."""
        self.agents = 0
        self.started: list[StartHost] = []
        self._scope = trio.CancelScope()

    def kill_agent(self) -> None:
        self._scope.cancel()

    async def run(self, session: SideSession) -> str:
        if self.refusal == "none can be launched":
            raise LaunchFailed("no process could be started")
        self.agents += 1
        ours, theirs = trio.testing.memory_stream_pair()
        self._scope = trio.CancelScope()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._agent, theirs, self._scope)
            await session(ours)
            nursery.cancel_scope.cancel()
        return "killed"

    async def _agent(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        with scope:
            if self.raw:
                await stream.send_all(self.raw)
                self.raw = b""
            if self.refusal:
                await self._say(stream, AgentRefused(self.refusal))
                scope.cancel()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, stream)
                while True:
                    if not self.mute:
                        await self._say(stream, Nodes(ADDRESS, self.nodes))
                    await trio.sleep(SIGN_OF_LIFE_SECONDS)
        await stream.aclose()

    async def _obey(self, stream: trio.abc.Stream) -> None:
        reader = agent_inbound()
        while data := await stream.receive_some():
            for message in reader.feed(data):
                self.started.append(message)
                if self.start_refusal:
                    await self._say(stream, HostRefused(message.start_id, self.start_refusal))
                else:
                    await self._say(stream, HostStarted(message.start_id))

    @staticmethod
    async def _say(stream: trio.abc.Stream, message: FromAgent) -> None:
        await stream.send_all(encode(message))


class PlacedLauncher:
    """An engine in this process that its starter has to allow first, as `RemoteLauncher` does."""

    def __init__(self, starter: HostStarter) -> None:
        self._starter = starter
        self.engine = LoopbackLauncher()

    async def run(self, session: Session) -> Exit:
        await self._starter.start(HostOrder((), 1, _TOKEN, _TOKEN))
        return await self.engine.run(session)
