"""Start the agent's process, run one session with it, and always end it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog
import trio

from scheduler.link.process import LaunchFailed

_log = structlog.get_logger("cluster")
_STOP_SECONDS = 2.0
_END_SECONDS = 5.0
"""For all of its end: what is left of a process that SIGKILL does not end is the system's."""
"""From end of file to SIGKILL: it holds nothing."""
_KEPT_LINES = 20

AgentSession = Callable[[trio.abc.Stream], Awaitable[None]]


class AgentLauncher(Protocol):
    """Starts an agent: a process, or in tests one over memory."""

    async def run(self, session: AgentSession) -> str:
        """Start an agent, run `session` with the link to it until that returns or is cancelled, and end the
        agent. Return its last words; empty: it had none. Raises LaunchFailed."""
        ...


class AgentProcess:
    """`python -m scheduler.cluster.agent` on one end of a socket pair."""

    def __init__(self, environment: Mapping[str, str], ray_address: str) -> None:
        # Ray reports nothing to its makers, and on a Mac joins a cluster at all.
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
        self._environment = {**quiet, **environment}
        self._ray_address = ray_address

    async def run(self, session: AgentSession) -> str:
        process, ours = await self._launch()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        lines: deque[str] = deque(maxlen=_KEPT_LINES)
        read = trio.Event()
        async with trio.open_nursery() as nursery:
            assert process.stderr is not None
            nursery.start_soon(_read_stderr, process.stderr, lines, read)
            try:
                await session(stream)
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + _END_SECONDS):
                    await trio.aclose_forcefully(stream)
                    with trio.move_on_after(_STOP_SECONDS):
                        await process.wait()
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                    with trio.move_on_after(1):
                        await read.wait()
                    await process.stderr.aclose()
                nursery.cancel_scope.cancel()
        return lines[-1] if lines else ""

    async def _launch(self) -> tuple[trio.Process, socket.socket]:
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise LaunchFailed(f"the agent could not be started: {error}") from error
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [
                        *(sys.executable, "-m", "scheduler.cluster.agent"),
                        *("--fd", str(theirs.fileno()), "--ray", self._ray_address),
                    ],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=self._environment,
                    # Its own session: only the front handles Ctrl-C in the terminal.
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            raise LaunchFailed(f"the agent could not be started: {error}") from error
        except BaseException:
            ours.close()
            raise
        return process, ours


async def _read_stderr(stream: trio.abc.ReceiveStream, lines: deque[str], read: trio.Event) -> None:
    """Ray's own log lines are for debugging; the last ones may say why the agent ended."""
    pending = b""
    try:
        async for data in stream:
            *whole, pending = (pending + data).split(b"\n")
            for line in whole:
                if text := line.decode("utf-8", "replace").strip():
                    lines.append(text)
                    _log.debug("agent_stderr", line=text)
            # Bound a line that never ends.
            pending = pending[-8192:]
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    finally:
        read.set()
