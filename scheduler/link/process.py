"""Start an engine process, run one session with it, and always end it.

End of file on the socket pair signals death, in both directions. PR_SET_PDEATHSIG is not used: it follows the
parent's *thread*, and the trio worker thread that started the child expires after ten seconds, which would
kill a healthy engine.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from scheduler.link.channel import Channel
from scheduler.link.child_process import LaunchFailed as LaunchFailed
from scheduler.link.child_process import relay_stderr, start_child
from scheduler.link.oom_kills import oom_kills
from scheduler.link.stderr_tail import StderrTail

_DUMP_SECONDS = 1.0
"""Time for a hung engine to write its stacks."""
_LAST_WORDS_SECONDS = 1.0
"""Time to read a dead engine's stderr; end of file may never come if it left a child process."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How an engine process ended. `returncode` is negative for a signal."""

    returncode: int | None
    last_stderr: tuple[str, ...] = ()
    ended_by_us: bool = False
    """Whether it had to be killed here, because it hung or did not end with its link."""
    out_of_memory: bool = False
    """Whether the kernel killed a process of this machine or container meanwhile, for lack of memory."""

    def __str__(self) -> str:
        match self.returncode:
            case None:
                return "left no exit status"
            case code if code < 0:
                known = -code in {*signal.Signals}
                return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"
            case code:
                return f"exited with status {code}"


Session = Callable[[Channel], Awaitable[None]]


class LaunchRefused(Exception):
    """The machine and this server cannot work together, as one of them is: a sentence for the operator. No
    further attempt is made by itself."""


class EngineLauncher(Protocol):
    """Starts an engine: a process, or in tests the engine's loop over memory."""

    async def run(self, session: Session) -> Exit:
        """Start an engine, run `session` with its channel, and return when the engine has ended.

        Ends the engine when the session returns, raises or is cancelled. Raises LaunchFailed or
        LaunchRefused before the session has begun.
        """
        ...


class ProcessLauncher:
    """`python -m scheduler.engine` on one end of a socket pair."""

    def __init__(
        self, environment: Mapping[str, str], stop_seconds: float, cores: frozenset[int] | None = None
    ) -> None:
        """`cores`: the only ones that the engine may use; None: all, as on systems that cannot pin."""
        self._environment = dict(environment)
        self._stop_seconds = stop_seconds
        self._cores = cores

    async def run(self, session: Session) -> Exit:
        process, ours = await self._launch()
        channel = Channel(trio.SocketStream(trio.socket.from_stdlib_socket(ours)))
        oom_kills_before, ended_by_us = oom_kills(), False
        tail = StderrTail()
        relayed = trio.Event()
        assert process.stderr is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(channel.write_forever)
                nursery.start_soon(relay_stderr, process.stderr, tail, relayed)
                try:
                    await session(channel)
                finally:
                    ended_by_us = await self._end(process, channel)
                    with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST_WORDS_SECONDS):
                        await relayed.wait()
                    nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1):
                await process.stderr.aclose()
        return Exit(process.returncode, tail.lines, ended_by_us, oom_kills() > oom_kills_before)

    async def _launch(self) -> tuple[trio.Process, socket.socket]:
        """Start the process. Return it and the parent's end of its link."""
        process, ours = await start_child("engine", "scheduler.engine", (), self._environment, stdout=None)
        if self._cores is not None and sys.platform == "linux":
            # It has no thread but its first one yet. It may also be gone already, which its session will
            # find.
            with suppress(OSError):
                os.sched_setaffinity(process.pid, self._cores)
        return process, ours

    async def _end(self, process: trio.Process, channel: Channel) -> bool:
        """Close the link, which ends the engine even in the middle of a step; kill it if it does not exit.
        Return whether it was killed.

        Shielded, because an orphaned engine is worse than a late exit.
        """
        killed = channel.unresponsive
        if killed:
            # On SIGABRT its faulthandler writes the stacks of all threads to stderr, and the process ends.
            process.send_signal(signal.SIGABRT)
            # A stopped process handles no signal but SIGKILL until it continues.
            process.send_signal(signal.SIGCONT)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _DUMP_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
            await channel.aclose()
            await process.wait()
        if process.returncode is None:
            killed = True
            process.kill()
            with trio.CancelScope(shield=True, deadline=trio.current_time() + self._stop_seconds):
                await process.wait()
        return killed
