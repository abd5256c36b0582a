"""An engine as a process to start and to speak with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import trio

from scheduler.processes.channel import Channel
from scheduler.processes.child_process import ChildProcess
from scheduler.processes.child_process import Exit as Exit
from scheduler.processes.child_process import LaunchFailed as LaunchFailed

Session = Callable[[Channel], Awaitable[None]]


class EngineLauncher(Protocol):
    """Starts an engine: a process here, or one that dials; in tests the engine's loop over memory."""

    async def run(self, session: Session) -> Exit:
        """Start an engine, run `session` with its channel, and return when the engine has ended.

        Ends the engine when the session returns, raises or is cancelled. Raise LaunchFailed before the
        session has begun.
        """
        ...


class ProcessLauncher:
    """Starts `python -m scheduler.engine` on one end of a socket pair."""

    def __init__(self, environment: Mapping[str, str], stop_seconds: float) -> None:
        self._child = ChildProcess("engine", "scheduler.engine", (), environment, stop_seconds)

    async def run(self, session: Session) -> Exit:
        async def talk(stream: trio.abc.Stream) -> bool:
            channel = Channel(stream)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                await session(channel)
                nursery.cancel_scope.cancel()
            return channel.unresponsive

        return await self._child.run(talk)
