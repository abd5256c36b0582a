"""An engine that dials, as if from another machine. Nothing keeps it alive there: it has one life."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import trio

from scheduler.cluster.joined import JoinedLauncher
from scheduler.processes.child_process import StderrTail, relay_stderr
from scheduler.processes.listener import Dialed, Listener
from scheduler.processes.process import Exit, Session
from scheduler.shared.hello import new_token
from tests.fakes.local_machine import LOOPBACK, joining


class OverTcp:
    """An `EngineLauncher` with a listener of its own, which also sees how the process ends, as its machine
    does."""

    def __init__(
        self, caches: Path, stop_seconds: float = 10.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self._caches = caches
        self._stop_seconds = stop_seconds
        self._environment = environment or {}

    async def run(self, session: Session) -> Exit:
        launcher, token, tail, read = JoinedLauncher(), new_token(), StderrTail(), trio.Event()

        def arrived(dialed: Dialed) -> None:
            launcher.offer(dialed)

        async with trio.open_nursery() as nursery:
            port: int = await nursery.start(Listener(token, arrived).serve, LOOPBACK, 0)
            command, environment = joining(port, token, self._caches, "0")
            process = await trio.lowlevel.open_process(
                command,
                env={**environment, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            assert process.stderr is not None
            nursery.start_soon(relay_stderr, process.stderr, tail, read)
            try:
                await launcher.run(session)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
                    await process.wait()
                    await read.wait()
                if process.returncode is None:
                    process.kill()
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
                        await process.wait()
            nursery.cancel_scope.cancel()
        return Exit(process.returncode, tail.lines)
