"""Engines that dial this server: a member of the pool for each machine that has joined.

A machine has the same engine in the pool over all its connections: when its link ends, its requests continue
on other engines, and when the machine dials again it is loaded again.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import trio

from scheduler.engines.boundary import MOST_ENGINES
from scheduler.engines.engine import Engine
from scheduler.engines.pool import Pool
from scheduler.processes.channel import Channel
from scheduler.processes.listener import Dialed
from scheduler.processes.process import Exit, Session

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
    """An EngineLauncher that starts nothing: each run uses a connection of the machine, whose end ends the
    engine, on both machines."""

    def __init__(self) -> None:
        self._dialed: Dialed | None = None
        self._arrived = trio.Event()

    @property
    def waiting(self) -> bool:
        """Return whether the machine has dialed, and its connection is unused."""
        return self._dialed is not None

    def offer(self, dialed: Dialed) -> Dialed | None:
        """Keep the machine's connection for the next run. Return an older one that it replaces."""
        older, self._dialed = self._dialed, dialed
        self._arrived.set()
        return older

    def withdraw(self) -> Dialed | None:
        """Return the unused connection."""
        dialed, self._dialed, self._arrived = self._dialed, None, trio.Event()
        return dialed

    async def run(self, session: Session) -> Exit:
        """Wait until the machine has dialed, then run the session. The cause of an engine's end is in the log
        of the service that keeps it alive on its machine."""
        await self._arrived.wait()
        dialed = self.withdraw()
        assert dialed is not None
        channel = Channel(dialed.stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                await session(channel)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _CLOSE_SECONDS):
                await trio.aclose_forcefully(dialed.stream)
        return Exit(None, ())


@dataclass(slots=True)
class _Member:
    """A machine, and its engine in the pool."""

    launcher: JoinedLauncher
    engine: str
    address: str
    """From which it dialed last."""
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

    def __init__(self, engines: Pool) -> None:
        self._engines = engines
        self._members: dict[str, _Member] = {}
        """By the machine's name."""
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
        if (member := self._members.get(dialed.host)) is None:
            self._add(dialed)
            return
        member.address = dialed.address
        if (older := member.launcher.offer(dialed)) is not None:
            self._close(older)

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
            if engine.supervisor.linked or member.launcher.waiting:
                member.away_since = None
            elif member.away_since is None:
                member.away_since = now
            elif now - member.away_since >= AWAY_SECONDS:
                _log.warning("machine_left", machine=name, engine=member.engine)
                self._engines.remove(member.engine)
                self._forget(name)

    def machines(self) -> tuple[JoinedMachine, ...]:
        linked = {engine.name: engine.supervisor.linked for engine in self._engines}
        return tuple(
            JoinedMachine(machine, member.address, linked.get(member.engine, False), member.engine)
            for machine, member in self._members.items()
        )

    def _add(self, dialed: Dialed) -> None:
        if len(self._engines.names) >= MOST_ENGINES:
            self._refuse(dialed, f"there are {MOST_ENGINES} engines, as many as there may be")
            return
        launcher = JoinedLauncher()
        launcher.offer(dialed)
        engine = self._engines.add(launcher)
        _log.info("machine_joined", machine=dialed.host, address=dialed.address, engine=engine.name)
        self._members[dialed.host] = _Member(launcher, engine.name, dialed.address)

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
        if not (engine.supervisor.linked and member.launcher.waiting):
            member.taken_since = None
        elif member.taken_since is None:
            member.taken_since = now
        elif now - member.taken_since >= AWAY_SECONDS:
            member.taken_since = None
            dialed = member.launcher.withdraw()
            assert dialed is not None
            self._refuse(dialed, f"another machine is {name!r}: give one of them another --name")

    def _refuse(self, dialed: Dialed, reason: str) -> None:
        _log.warning("machine_refused", machine=dialed.host, address=dialed.address, reason=reason)
        self._close(dialed)

    def _close(self, dialed: Dialed) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(trio.aclose_forcefully, dialed.stream)

    def _forget(self, name: str) -> None:
        if (dialed := self._members.pop(name).launcher.withdraw()) is not None:
            self._close(dialed)


def retry_seconds(failures: int) -> float:
    """Return how long an engine waits after `failures` failed starts in a row."""
    return min(RETRY_SECONDS * 2.0 ** min(failures - 1, 16), RETRY_LIMIT_SECONDS)
