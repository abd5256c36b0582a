"""Start the agent's process, run one session with it, and always end it."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import trio

from scheduler.link.child_process import relay_stderr, start_child
from scheduler.link.stderr_tail import StderrTail

_STOP_SECONDS = 2.0
"""From end of file to SIGKILL: it holds nothing."""
_END_SECONDS = 5.0
"""For all of its end: what is left of a process that SIGKILL does not end is the system's."""

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
        process, ours = await start_child(
            "agent",
            "scheduler.cluster.agent",
            ("--ray", self._ray_address),
            self._environment,
            stdout=subprocess.DEVNULL,
        )
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        # Ray's own log lines are for debugging; the last one may say why the agent ended.
        tail, read = StderrTail("agent_stderr", logging.DEBUG), trio.Event()
        async with trio.open_nursery() as nursery:
            assert process.stderr is not None
            nursery.start_soon(relay_stderr, process.stderr, tail, read)
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
        return tail.lines[-1] if tail.lines else ""
