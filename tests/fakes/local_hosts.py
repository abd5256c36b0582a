"""Engines over TCP on this machine: the host process is a real one, only Ray is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import trio
from msgspec import structs

from scheduler.cluster.host import DEVICE_VARIABLE
from scheduler.cluster.order import HostOrder
from scheduler.cluster.remote_launcher import RemoteLauncher
from scheduler.cluster.started_host import HostNotStarted, StartedHost, start_host
from scheduler.link.listener import Listener
from scheduler.link.process import Exit, LaunchFailed, LaunchRefused, Session

LOOPBACK = "127.0.0.1"
_END_SECONDS = 5.0


class LocalStarter:
    """A `HostStarter` whose machine is this one, as if it had one device for each name."""

    def __init__(self, caches: Path, device: str = "0", *, via: int | None = None) -> None:
        """`caches`: the folder of its locks. `via`: dial this port instead of the front's."""
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(caches), DEVICE_VARIABLE: device}
        self._via = via
        self.hosts: list[StartedHost] = []

    async def start(self, order: HostOrder) -> None:
        if self._via is not None:
            order = structs.replace(order, port=self._via)
        try:
            self.hosts.append(await trio.to_thread.run_sync(start_host, order, self.environment))
        except HostNotStarted as error:
            raise LaunchFailed(str(error)) from error

    def describe(self) -> str:
        return "this machine"

    def close(self) -> None:
        """Let its host processes end, which they do by now, unless the test is about one that does not."""
        for host in self.hosts:
            host.wait(_END_SECONDS)
            host.close()


class OverTcp:
    """An `EngineLauncher` with a listener of its own."""

    def __init__(
        self, starter: LocalStarter, stop_seconds: float = 10.0, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: of the engine, beside its machine's."""
        self.starter = starter
        self._stop_seconds = stop_seconds
        self._environment = environment

    async def run(self, session: Session) -> Exit:
        try:
            return await self._run(session)
        finally:
            self.starter.close()

    async def _run(self, session: Session) -> Exit:
        failed: LaunchFailed | LaunchRefused | None = None
        listener = Listener()
        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(listener.serve, LOOPBACK, 0)
            launcher = RemoteLauncher(
                self.starter, listener, [LOOPBACK], port, self._stop_seconds, self._environment
            )
            try:
                ended = await launcher.run(session)
            except (LaunchFailed, LaunchRefused) as error:
                # Raised outside the nursery, which would wrap it in an exception group.
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        return ended
