"""Engines that follow a script, one for each life."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from scheduler.processes.channel import Channel
from scheduler.processes.process import Exit, LaunchFailed, Session
from scheduler.shared.framing import encode
from scheduler.shared.messages import (
    PROTOCOL_VERSION,
    FromEngine,
    Ready,
)

READY = Ready(PROTOCOL_VERSION, "fake", "fake", 8192, 64, 0, "none")

Life = Callable[[trio.abc.Stream], Awaitable[None]]
"""One engine's behaviour at its end of the link; it dies when this returns."""


class LivesLauncher:
    """An `EngineLauncher` whose engines follow a script; the last life is repeated. One that is None cannot
    be launched."""

    def __init__(
        self,
        *lives: Life | None,
        exit_: Exit | None = None,
        channel: Callable[[trio.abc.Stream], Channel] = Channel,
    ) -> None:
        self._lives = lives
        self._channel = channel
        self._exit = exit_ or Exit(1)
        self.started_at: list[float] = []

    async def run(self, session: Session) -> Exit:
        life = self._lives[min(len(self.started_at), len(self._lives) - 1)]
        self.started_at.append(trio.current_time())
        if life is None:
            await trio.lowlevel.checkpoint()
            raise LaunchFailed("the engine could not be started: Too many open files")
        ours, theirs = trio.testing.memory_stream_pair()
        channel = self._channel(ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.write_forever)
            nursery.start_soon(self._live, life, theirs)
            try:
                await session(channel)
            finally:
                nursery.cancel_scope.cancel()
        return self._exit

    @staticmethod
    async def _live(life: Life, link: trio.abc.Stream) -> None:
        await life(link)
        await link.aclose()


def says(*messages: FromEngine, then_lives: float = 0) -> Life:
    """An engine that sends these messages when it is started, and lives on for `then_lives` seconds."""

    async def life(link: trio.abc.Stream) -> None:
        await link.send_all(b"".join([encode(message) for message in messages]))
        await trio.sleep(then_lives)

    return life


FOREVER = 1e9
healthy = says(READY, then_lives=FOREVER)
