"""Start a process that works beside the engines, run one session with it, and always end it: the agent that
speaks with Ray."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import trio

from scheduler.link.child_process import relay_stderr, start_child
from scheduler.link.process import Exit
from scheduler.link.stderr_tail import StderrTail

_STOP_SECONDS = 2.0
"""From end of file to SIGKILL: it holds nothing."""
_END_SECONDS = 5.0
"""For all of its end: what is left of a process that SIGKILL does not end is the system's."""

SideSession = Callable[[trio.abc.Stream], Awaitable[None]]


class SideLauncher(Protocol):
    """Starts such a process, or in tests one over memory."""

    async def run(self, session: SideSession) -> str:
        """Start it, run `session` with the link to it until that returns or is cancelled, and end the
        process. Return its last words, and the signal that ended it; empty: neither. Raises
        LaunchFailed."""
        ...


class SideProcess:
    """`python -m module --fd N arguments`, N being its end of a socket pair."""

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        level: int = logging.INFO,
    ) -> None:
        """`level`: of its lines in our log."""
        self._name, self._module, self._arguments = name, module, arguments
        self._environment, self._level = environment, level

    async def run(self, session: SideSession) -> str:
        process, ours = await start_child(
            self._name, self._module, self._arguments, self._environment, stdout=subprocess.DEVNULL
        )
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        tail, read = StderrTail(f"{self._name}_stderr", self._level), trio.Event()
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
        said = tail.lines[-1] if tail.lines else ""
        if process.returncode is None or process.returncode >= 0:
            return said
        return f"it {Exit(process.returncode)}{f'; before that: {said}' if said else ''}"
