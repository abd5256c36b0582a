"""The machines of a Ray cluster as the front sees them: an engine on each of their places.

It keeps the agent alive, which alone speaks with Ray, and lets the pool's members follow the nodes. An engine
that runs needs neither Ray nor the agent: when they are gone, only new ones cannot be started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import msgspec
import structlog
import trio

from scheduler.cluster.agent_messages import (
    AgentRefused,
    FromAgent,
    HostRefused,
    HostStarted,
    Node,
    Nodes,
    StartHost,
    front_inbound,
)
from scheduler.cluster.membership import Seat, Seated, changes, retry_seconds
from scheduler.cluster.order import HostOrder, HostStarter
from scheduler.cluster.rank_hosts import RankHosts
from scheduler.cluster.statistics import ClusterState, ClusterStatistics, NodeStatistics
from scheduler.engines.boundary import MOST_ENGINES
from scheduler.errors import LinkError
from scheduler.link.framing import encode
from scheduler.link.process import EngineLauncher, LaunchFailed
from scheduler.link.side_process import SideLauncher
from scheduler.telemetry.containment import Containment
from scheduler.telemetry.metrics import Metrics

_log = structlog.get_logger("cluster")
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""An agent that connects to Ray, or has been connected, gives a sign of life or a reason before this."""
AGENT_SECONDS = 10.0
"""After an agent's end starts wait this long for the next one; later they fail at once, so that requests that
wait for this engine go on at others."""
_TICK_SECONDS = 1.0
"""Links that end are noticed this late."""
_READ_BYTES = 1 << 16
DEVICE_VARIABLE = "PENSTOCK_DEVICE"


class Engine(Protocol):
    """What the cluster needs of a pool's member."""

    @property
    def name(self) -> str: ...
    @property
    def linked(self) -> bool:
        """Whether a process of it runs."""
        ...

    @property
    def ready(self) -> bool: ...
    @property
    def failed(self) -> bool:
        """Whether it could not be started, and nobody tries."""
        ...


class Engines(Protocol):
    """The pool. Iterating gives those that are there, also those that leave."""

    def __iter__(self) -> Iterator[Engine]: ...
    def add(self, launcher: EngineLauncher) -> Engine: ...
    def remove(self, name: str) -> None: ...
    def retry(self, name: str) -> None: ...


@dataclass(slots=True)
class _Pending:
    """A start that the agent has been asked for. `refusal` empty: it is done."""

    answered: trio.Event = field(default_factory=trio.Event)
    refusal: str = ""


@dataclass(slots=True)
class _Place:
    """Where a member is, and when it is tried again there if it could not be started."""

    starter: SeatStarter
    failures: int = 0
    """In a row."""
    retry_at: float | None = None


class SeatStarter:
    """Starts host processes on one seat, which may move to the node's next life."""

    def __init__(self, cluster: Cluster, seat: Seat) -> None:
        self._cluster = cluster
        self.seat = seat

    async def start(self, order: HostOrder) -> None:
        await self._cluster.start_host(self.seat, order)

    def describe(self) -> str:
        return self.seat.machine


class RankStarter:
    """Starts host processes for one rank of an engine over several machines."""

    def __init__(self, cluster: Cluster, rank: int) -> None:
        self._cluster = cluster
        self._rank = rank

    async def start(self, order: HostOrder) -> None:
        await self._cluster.start_rank(self._rank, order)

    def describe(self) -> str:
        return self._cluster.machine_of_rank(self._rank)


class Cluster:
    """`run` must be running."""

    def __init__(
        self,
        agent: SideLauncher,
        engines: Engines,
        launcher: Callable[[HostStarter], EngineLauncher],
        metrics: Metrics,
        addresses: tuple[str, ...] = (),
        hosts: RankHosts | None = None,
    ) -> None:
        """`launcher`: of engines on the machine of a starter. `addresses`: of this machine, by which nodes
        reach it; empty: the one that Ray knows. `hosts`: of the ranks of one engine, which is the only one,
        and is there while all of them are; `launcher` then makes its own starters (`RankStarter`)."""
        self._agent = agent
        self._engines = engines
        self._launcher = launcher
        self._metrics = metrics
        self._telemetry = Containment(metrics)
        self._addresses = addresses
        self._hosts = hosts
        self._state = ClusterState.CONNECTING
        self._reason: str | None = None
        self._refusal = ""
        """Why the agent said that it cannot work."""
        self._restarts = 0
        self._lost_at = 0.0
        """When an agent was connected last; before the first one, the start."""
        self._address: str | None = None
        self._nodes: dict[str, Node] = {}
        self._places: dict[str, _Place] = {}
        self._pending: dict[int, _Pending] = {}
        self._start_ids = count(1)
        self._stream: trio.abc.Stream | None = None
        """To an agent that is connected to Ray."""
        self._sending = trio.Lock()
        self._connected = trio.Event()
        self._changed = trio.Event()

    async def run(self) -> None:
        """Never returns by itself; cancel it to end the agent. Engines are the pool's."""
        self._lost_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_nodes)
            await self._keep_agent()

    def statistics(self) -> ClusterStatistics:
        by_node: dict[str, list[str]] = {}
        for name, place in self._places.items():
            for node_id in place.starter.seat.node_id.split():
                by_node.setdefault(node_id, []).append(name)
        nodes = [
            NodeStatistics(node.machine, node.address, True, node.places, tuple(by_node.pop(node.id, ())))
            for node in self._nodes.values()
        ]
        # Engines whose node Ray has lost go on.
        nodes += [
            NodeStatistics(self._places[names[0]].starter.seat.machine, "", False, 0, tuple(names))
            for names in by_node.values()
        ]
        dials = ", ".join(self._addresses) or self._address
        return ClusterStatistics(self._state, self._reason, dials, self._restarts, tuple(nodes))

    # --- the agent

    async def _keep_agent(self) -> None:
        backoff = BACKOFF_FIRST_SECONDS
        while True:
            try:
                last_words = await self._agent.run(self._session)
            except LaunchFailed as error:
                last_words = str(error)
            if self._state is ClusterState.CONNECTED:
                backoff = BACKOFF_FIRST_SECONDS
            self._lost(last_words or "the agent ended without a word", backoff)
            await trio.sleep(backoff)
            backoff = min(backoff * 2, BACKOFF_LIMIT_SECONDS)

    def _lost(self, last_words: str, backoff: float) -> None:
        """Engines go on; those that wait for a start learn that there is none."""
        reason = self._refusal or last_words
        if reason != self._reason:
            _log.error("cluster_lost", reason=reason, restart_in_seconds=backoff)
        if self._state is ClusterState.CONNECTED:
            self._lost_at = trio.current_time()
        self._state, self._reason, self._refusal = ClusterState.LOST, reason, ""
        self._restarts += 1
        self._telemetry.sample(self._metrics.agent_restarts.inc)
        for pending in self._pending.values():
            pending.refusal = reason
            pending.answered.set()
        self._pending.clear()

    async def _session(self, stream: trio.abc.Stream) -> None:
        """Return when the agent is gone or hangs."""
        reader = front_inbound()
        try:
            while True:
                data: bytes | bytearray = b""
                with trio.move_on_after(SILENCE_SECONDS) as limit:
                    data = await stream.receive_some(_READ_BYTES)
                if limit.cancelled_caught:
                    self._refusal = f"the agent has sent nothing for {SILENCE_SECONDS:g} s"
                if not data:
                    return
                for message in reader.feed(data):
                    self._take(message, stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except LinkError as error:
            self._refusal = f"the agent breaks the protocol: {error}"
        finally:
            self._stream = None
            self._connected = trio.Event()

    def _take(self, message: FromAgent, stream: trio.abc.Stream) -> None:
        match message:
            case Nodes(address=address, nodes=nodes):
                self._joined(stream, address)
                self._seen({node.id: node for node in nodes})
            case HostStarted(start_id=start_id):
                self._answer(start_id, "")
            case HostRefused(start_id=start_id, reason=reason):
                self._answer(start_id, reason or "Ray gave no reason")
            case AgentRefused(reason=reason):
                self._refusal = reason

    def _joined(self, stream: trio.abc.Stream, address: str) -> None:
        self._stream, self._address = stream, address
        self._connected.set()
        if self._state is not ClusterState.CONNECTED:
            _log.info("cluster_joined", address=address)
        self._state, self._reason = ClusterState.CONNECTED, None

    def _seen(self, nodes: dict[str, Node]) -> None:
        if nodes == self._nodes:
            return
        for node in nodes.values():
            if node.id not in self._nodes:
                _log.info("node_joined", machine=node.machine, address=node.address, places=node.places)
        for node in self._nodes.values():
            if node.id not in nodes:
                _log.warning("node_left", machine=node.machine, address=node.address)
        self._nodes = nodes
        self._telemetry.sample(self._metrics.cluster_nodes.set, len(nodes))
        self._changed.set()

    def _answer(self, start_id: int, refusal: str) -> None:
        if (pending := self._pending.pop(start_id, None)) is not None:
            pending.refusal = refusal
            pending.answered.set()

    async def start_host(self, seat: Seat, order: HostOrder) -> None:
        """Raise LaunchFailed."""
        with trio.move_on_at(max(self._lost_at + AGENT_SECONDS, trio.current_time())):
            await self._connected.wait()
        if (stream := self._stream) is None or self._address is None:
            reason = self._reason or "the agent is not connected to Ray yet"
            raise LaunchFailed(f"no engine can be started on {seat.machine}: {reason}")
        if seat.node_id not in self._nodes:
            raise LaunchFailed(f"{seat.machine} has left the cluster")
        order = _with_place(order, self._addresses or (self._address,), seat)
        start_id, pending = next(self._start_ids), _Pending()
        self._pending[start_id] = pending
        try:
            async with self._sending:
                await stream.send_all(encode(StartHost(start_id, seat.node_id, order)))
            await pending.answered.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LaunchFailed(f"no engine can be started on {seat.machine}: the agent is gone") from error
        finally:
            self._pending.pop(start_id, None)
        if pending.refusal:
            raise LaunchFailed(f"no engine can be started on {seat.machine}: {pending.refusal}")

    async def start_rank(self, rank: int, order: HostOrder) -> None:
        """Raise LaunchFailed."""
        seats = self._rank_seats()
        if seats is None:
            raise LaunchFailed("the machines of the engine's ranks are not all in the cluster")
        await self.start_host(seats[rank], order)

    def machine_of_rank(self, rank: int) -> str:
        seats = self._rank_seats()
        return f"the machine of rank {rank}" if seats is None else seats[rank].machine

    def _rank_seats(self) -> tuple[Seat, ...] | None:
        return None if self._hosts is None else self._hosts.seats(list(self._nodes.values()))

    # --- the members

    async def _follow_nodes(self) -> None:
        while True:
            self._changed = trio.Event()
            try:
                self._adjust(trio.current_time())
            except Exception:
                # Engines that run go on, whatever is wrong with a decision about others.
                _log.exception("membership_failed")
            with trio.move_on_after(_TICK_SECONDS):
                await self._changed.wait()

    def _adjust(self, now: float) -> None:
        members = list(self._seated(now))
        nodes = list(self._nodes.values())
        offered = nodes if self._hosts is None else self._hosts.whole(nodes)
        todo = changes(offered, members, now, MOST_ENGINES)
        for name, seat in todo.move:
            _log.info("engine_node_joined_again", engine=name, machine=seat.machine)
            self._places[name].starter.seat = seat
        for name in todo.remove:
            del self._places[name]
            self._engines.remove(name)
        for name in todo.retry:
            self._places[name].retry_at = None
            self._engines.retry(name)
        for seat in todo.add:
            starter = SeatStarter(self, seat)
            self._places[self._engines.add(self._launcher(starter)).name] = _Place(starter)

    def _seated(self, now: float) -> Iterator[Seated]:
        """Those that the cluster has placed, and that have not left the pool."""
        there = {engine.name: engine for engine in self._engines}
        for name in [name for name in self._places if name not in there]:
            del self._places[name]
        for name, place in self._places.items():
            if there[name].ready:
                place.failures = 0
            if there[name].failed and place.retry_at is None:
                place.failures += 1
                place.retry_at = now + retry_seconds(place.failures)
            yield Seated(name, place.starter.seat, there[name].linked, place.retry_at)


def _with_place(order: HostOrder, addresses: tuple[str, ...], seat: Seat) -> HostOrder:
    """Return the order with this machine's addresses and, of several places of a node, with the device of
    each: its card, with CUDA."""
    environment = order.environment
    if seat.of > 1:
        unit = str(seat.unit)
        environment += ((DEVICE_VARIABLE, unit), ("CUDA_VISIBLE_DEVICES", unit))
    return msgspec.structs.replace(order, addresses=addresses, environment=environment)
