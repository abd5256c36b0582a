"""Engines over TCP on this machine: the host process is a real one, only Ray is missing."""

from __future__ import annotations

from collections.abc import Mapping

import trio

from loadtests.pool.local_starter import LOOPBACK as LOOPBACK
from loadtests.pool.local_starter import LocalStarter as LocalStarter
from scheduler.cluster.remote_launcher import RemoteLauncher
from scheduler.link.listener import Listener
from scheduler.link.process import Exit, LaunchFailed, LaunchRefused, Session


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
