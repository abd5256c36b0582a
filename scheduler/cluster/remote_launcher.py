"""Start an engine on another machine, run one session with it, and always end it.

A host process is started there, connects back, and starts the engine on a second connection, by which the
session speaks with the engine itself. The end of either connection is the end of the engine, here and there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog
import trio

from scheduler.cluster.host_link import HostLink
from scheduler.cluster.host_messages import ENGINE_ROLE, HOST_ROLE, AbortEngine, KillEngine
from scheduler.cluster.order import HostOrder, HostStarter
from scheduler.errors import LinkError
from scheduler.link.channel import Channel
from scheduler.link.hello import HelloRefused
from scheduler.link.listener import Awaited, Listener
from scheduler.link.process import Exit, LaunchFailed, LaunchRefused, Session

_log = structlog.get_logger("cluster")
_START_SECONDS = 60.0
"""For a host process: Ray may have to start a worker first."""
_CONNECT_SECONDS = 10.0
"""From a host process's start to its connection: it tries before it says that it is started."""
_ENGINE_SECONDS = 40.0
"""From there to the engine's start: it may wait for the device, and has to connect once more."""
CLOSE_SECONDS = 1.0
"""For closing a connection, which waits for nobody."""
_DUMP_SECONDS = 3.0
"""For the stacks of a hung engine, and the way there and back."""


class RemoteLauncher:
    """An EngineLauncher for one machine."""

    def __init__(
        self,
        starter: HostStarter,
        listener: Listener,
        addresses: Sequence[str],
        port: int,
        stop_seconds: float,
        environment: Mapping[str, str] | None = None,
        blas: str = "off",
    ) -> None:
        """`addresses`, `port`: by which that machine reaches `listener`, which must be serving.
        `environment`: variables that the engine gets beside those of its machine. `blas`: which fast BLAS
        is to be made there, on a plain Linux CPU."""
        self._starter = starter
        self._listener = listener
        self._addresses = tuple(addresses)
        self._port = port
        self._stop_seconds = stop_seconds
        self._environment = tuple((environment or {}).items())
        self._blas = blas

    async def run(self, session: Session) -> Exit:
        host, channel = await self._launch()
        ended_by_us = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                nursery.start_soon(_follow, host, channel)
                try:
                    await session(channel)
                finally:
                    ended_by_us = await self._end(host, channel)
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                await host.aclose()
        return Exit(host.returncode, host.last_stderr, ended_by_us)

    async def _launch(self) -> tuple[HostLink, Channel]:
        """Raise LaunchFailed or LaunchRefused, after which nothing is left there."""
        async with self._listener.expect(HOST_ROLE) as host, self._listener.expect(ENGINE_ROLE) as engine:
            where = self._starter.describe()
            order = HostOrder(
                self._addresses, self._port, host.token, engine.token, self._environment, self._blas
            )
            link = await host_link(self._starter, order, host)
            try:
                started: int | str = f"no engine was started on {where} within {_ENGINE_SECONDS:g} s"
                with trio.move_on_after(_ENGINE_SECONDS):
                    started = await link.started()
                if isinstance(started, str):
                    raise LaunchFailed(started)
                stream, _ = await _connected(engine, where)
            except BaseException:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_SECONDS):
                    await link.aclose()
                raise
        _log.info("engine_started", host=link.host, pid=started)
        return link, Channel(stream)

    async def _end(self, host: HostLink, channel: Channel) -> bool:
        """Close the engine's link, which ends it even in the middle of a step; have it killed if it does not
        exit. Return whether that was necessary.

        Shielded, because an orphaned engine is worse than a late exit. Nothing here waits for a machine that
        is gone: closing the host's link, which follows, ends the engine there when it is back.
        """
        if channel.unresponsive:
            await _order(host, AbortEngine(), _DUMP_SECONDS)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
            await channel.aclose()
            await host.ended.wait()
        if host.ended.is_set():
            return channel.unresponsive
        await _order(host, KillEngine(), self._stop_seconds)
        return True


async def host_link(starter: HostStarter, order: HostOrder, host: Awaited) -> HostLink:
    """Start a host process, and return its connection, which is then the caller's to close. Raise
    LaunchFailed or LaunchRefused."""
    where = starter.describe()
    try:
        with trio.move_on_after(_START_SECONDS) as limit:
            await starter.start(order)
        if limit.cancelled_caught:
            raise LaunchFailed(f"no host process was started on {where} within {_START_SECONDS:g} s")
    except LaunchFailed:
        if host.refusal:
            # The listener knows better why it came to nothing.
            raise LaunchRefused(host.refusal) from None
        raise
    return HostLink(*await _connected(host, where))


async def _connected(awaited: Awaited, where: str) -> tuple[trio.abc.Stream, str]:
    """Raise LaunchFailed or LaunchRefused."""
    try:
        with trio.move_on_after(_CONNECT_SECONDS):
            dialed = await awaited.arrive()
            return dialed.stream, dialed.host
    except HelloRefused as refused:
        raise LaunchRefused(str(refused)) from refused
    except LinkError as error:
        raise LaunchFailed(str(error)) from error
    raise LaunchFailed(f"the host process on {where} did not connect within {_CONNECT_SECONDS:g} s")


async def _follow(host: HostLink, channel: Channel) -> None:
    """An engine that has ended closes its link itself, behind its last words; one whose host process is gone
    has to be ended from here."""
    await host.follow()
    if host.returncode is None:
        await channel.aclose()


async def _order(host: HostLink, order: AbortEngine | KillEngine, seconds: float) -> None:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + seconds):
        await host.order(order)
        await host.ended.wait()
