"""Engines that dial this server: a member of the pool for each machine that has joined.

A machine has the same engine in the pool over all its connections: when its link ends, its requests continue
on other engines, and when the machine dials again it is loaded again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio

from scheduler.cluster.rank_hosts import RankHosts
from scheduler.engines.engine import Engine
from scheduler.engines.pool import Pool
from scheduler.errors import TooManyEngines
from scheduler.processes.channel import Channel, EngineGone
from scheduler.processes.listener import Dialed
from scheduler.processes.process import Exit, Session
from scheduler.shared.messages import Follow, RankGroup

_log = structlog.get_logger("cluster")
AWAY_SECONDS = 30.0
"""A machine whose link has ended leaves the pool after this long without dialing again."""
RETRY_SECONDS = 60.0
"""An engine that was refused (another model, say) is tried again after this long, if its machine dials
again."""
RETRY_LIMIT_SECONDS = 3600.0
"""The wait doubles up to this: a machine may load a model for minutes only to be refused."""
_TICK_SECONDS = 1.0
_CLOSE_SECONDS = 1.0
"""Bound on closing a connection, which nothing waits for."""


class JoinedLauncher:
    """An EngineLauncher that starts nothing: each run uses a connection of the machine that has dialed, or
    one of each rank's machine. The connection's end ends the engine, on both machines."""

    def __init__(self, group: RankGroup | None = None) -> None:
        """`group`: the ranks of an engine on several machines, as its Load has them; None if the engine is on
        one."""
        self._group = group
        self._ranks = 1 if group is None else group.ranks
        self._dialed: dict[int, Dialed] = {}
        self._complete = trio.Event()

    @property
    def machines(self) -> dict[str, str]:
        """Return names and addresses of the machines whose connections are unused."""
        return {dialed.host: dialed.address for dialed in self._dialed.values()}

    @property
    def waiting(self) -> bool:
        """Return whether all machines have dialed, and their connections are unused."""
        return len(self._dialed) == self._ranks

    def offer(self, dialed: Dialed, rank: int = 0) -> Dialed | None:
        """Keep a machine's connection for the next run. Return an older one that it replaces."""
        older, self._dialed[rank] = self._dialed.get(rank), dialed
        if self.waiting:
            self._complete.set()
        return older

    def withdraw(self) -> list[Dialed]:
        """Return the unused connections."""
        dialed = [self._dialed[rank] for rank in sorted(self._dialed)]
        self._dialed, self._complete = {}, trio.Event()
        return dialed

    async def run(self, session: Session) -> Exit:
        """Wait until the machines have dialed, then run the session with rank 0. The cause of an engine's end
        is in the log of the service that keeps it alive on its machine."""
        await self._complete.wait()
        dialed = self.withdraw()
        channels = [Channel(one.stream) for one in dialed]
        ended: list[str] = []
        try:
            async with trio.open_nursery() as nursery:
                engine = trio.CancelScope()
                for rank, channel in enumerate(channels[1:], 1):
                    nursery.start_soon(self._lead, rank, dialed[rank].host, channel, engine, ended)
                nursery.start_soon(channels[0].write_forever)
                with engine:
                    await session(channels[0])
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
                for one in dialed:
                    await trio.aclose_forcefully(one.stream)
        return Exit(None, tuple(ended))

    async def _lead(
        self, rank: int, host: str, channel: Channel, engine: trio.CancelScope, ended: list[str]
    ) -> None:
        """Let a rank dial rank 0, and end the engine when the rank's link ends: rank 0 would wait for it in
        vain."""
        assert self._group is not None
        channel.send_nowait(Follow(rank, self._group.control, self._group.token))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.write_forever)
            with suppress(EngineGone):
                await channel.receive()
            nursery.cancel_scope.cancel()
        ended.append(f"rank {rank} on {host} has closed its link")
        _log.error("rank_lost", rank=rank, host=host)
        engine.cancel()


@dataclass(slots=True)
class _Member:
    """A machine, or those of one engine's ranks, and its engine in the pool."""

    launcher: JoinedLauncher
    engine: str
    machines: dict[str, str]
    """Names and addresses, as they dialed last."""
    away_since: float | None = None
    """The time since which it has no connection, or None while it has one."""
    taken_since: float | None = None
    """The time since which a second connection waits beside one that is in use, or None without a second
    one."""
    failures: int = 0
    """Number of failures in a row."""
    retry_at: float | None = None


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """A machine, for operators. `linked`: whether its engine runs."""

    machine: str
    address: str
    linked: bool
    engine: str


class JoinedEngines:
    """The machines that have joined. `run` must be running."""

    def __init__(self, engines: Pool, hosts: RankHosts | None = None) -> None:
        """`hosts`: the machines of one engine's ranks, which is then the only engine; None if each machine
        has one."""
        self._engines = engines
        self._hosts = hosts
        self._members: dict[str, _Member] = {}
        self._group: JoinedLauncher | None = None if hosts is None else JoinedLauncher(hosts.group)
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Follow the machines until cancelled. The pool runs their engines."""
        async with trio.open_nursery() as self._nursery:
            while True:
                try:
                    self.adjust(trio.current_time())
                except Exception:
                    # Engines that run go on, whatever is wrong with a decision about others.
                    _log.exception("membership_failed")
                await trio.sleep(_TICK_SECONDS)

    def arrived(self, dialed: Dialed) -> None:
        """Give a machine's connection to its engine, which is added to the pool if the machine is new."""
        rank = 0
        launcher = self._group
        name = dialed.host
        if self._hosts is not None and launcher is not None:
            found = self._hosts.rank_of(dialed.host, dialed.address)
            if found is None:
                self._refuse(dialed, "it is none of the machines in the file of ranks")
                return
            rank, name = found, self._hosts.name
        member = self._members.get(name)
        launcher = launcher or (JoinedLauncher() if member is None else member.launcher)
        older = launcher.offer(dialed, rank)
        if older is not None:
            self._close(older)
        if member is not None:
            member.machines[dialed.host] = dialed.address
        elif launcher.waiting:
            self._add(name, launcher)

    def adjust(self, now: float) -> None:
        """Remove the engines of machines that stay away, and retry failed engines whose machines have dialed
        again."""
        there = {engine.name: engine for engine in self._engines}
        for name, member in list(self._members.items()):
            if (engine := there.get(member.engine)) is None:
                self._forget(name)
                continue
            self._retry(member, engine, now)
            self._refuse_second(name, member, engine, now)
            if engine.linked or member.launcher.waiting:
                member.away_since = None
            elif member.away_since is None:
                member.away_since = now
            elif now - member.away_since >= AWAY_SECONDS:
                _log.warning("machine_left", machine=name, engine=member.engine)
                self._engines.remove(member.engine)
                self._forget(name)

    def machines(self) -> tuple[JoinedMachine, ...]:
        linked = {engine.name: engine.linked for engine in self._engines}
        return tuple(
            JoinedMachine(machine, address, linked.get(member.engine, False), member.engine)
            for member in self._members.values()
            for machine, address in member.machines.items()
        )

    def _add(self, name: str, launcher: JoinedLauncher) -> None:
        machines = launcher.machines
        try:
            engine = self._engines.add(launcher)
        except TooManyEngines as error:
            for one in launcher.withdraw():
                self._refuse(one, str(error))
            return
        for machine, address in machines.items():
            _log.info("machine_joined", machine=machine, address=address, engine=engine.name)
        self._members[name] = _Member(launcher, engine.name, machines)

    def _retry(self, member: _Member, engine: Engine, now: float) -> None:
        if engine.ready:
            member.failures = 0
        if not engine.failed:
            return
        if member.retry_at is None:
            member.failures += 1
            member.retry_at = now + retry_seconds(member.failures)
        elif now >= member.retry_at and member.launcher.waiting:
            member.retry_at = None
            self._engines.retry(member.engine)

    def _refuse_second(self, name: str, member: _Member, engine: Engine, now: float) -> None:
        """Refuse a machine's second connection if the first one lives on: then two machines have one name.
        Until that is known, the second one waits for the end of the first."""
        if not (engine.linked and member.launcher.waiting):
            member.taken_since = None
        elif member.taken_since is None:
            member.taken_since = now
        elif now - member.taken_since >= AWAY_SECONDS:
            member.taken_since = None
            for dialed in member.launcher.withdraw():
                self._refuse(dialed, f"another machine is {name!r}: give one of them another --name")

    def _refuse(self, dialed: Dialed, reason: str) -> None:
        _log.warning("machine_refused", machine=dialed.host, address=dialed.address, reason=reason)
        self._close(dialed)

    def _close(self, dialed: Dialed) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(trio.aclose_forcefully, dialed.stream)

    def _forget(self, name: str) -> None:
        for dialed in self._members.pop(name).launcher.withdraw():
            self._close(dialed)


def retry_seconds(failures: int) -> float:
    """Return how long an engine waits after `failures` failed starts in a row."""
    return min(RETRY_SECONDS * 2.0 ** min(failures - 1, 16), RETRY_LIMIT_SECONDS)
