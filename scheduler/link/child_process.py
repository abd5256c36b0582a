"""A child process on one end of a socket pair, and its stderr: an engine, or the agent that speaks with Ray.

A file of its own because `link/process.py` and `link/side_process.py` end their processes in different
ways, and start them in one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

import trio

from scheduler.link.stderr_tail import StderrTail
from scheduler.own_path import with_own_path


class LaunchFailed(Exception):
    """No process could be started, for lack of descriptors, processes or memory. It may work later."""


async def start_child(
    name: str, module: str, arguments: Sequence[str], environment: Mapping[str, str], stdout: int | None
) -> tuple[trio.Process, socket.socket]:
    """Run `python -m module --fd N arguments`, N being its end of a socket pair. Return it and our end. Raise
    LaunchFailed, with its `name`. `stdout`: as `subprocess` takes it."""
    try:
        ours, theirs = socket.socketpair()
    except OSError as error:
        raise LaunchFailed(f"the {name} could not be started: {error}") from error
    try:
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", module, "--fd", str(theirs.fileno()), *arguments],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env=with_own_path(environment),
                # Its own session: only the parent handles Ctrl-C in the terminal.
                start_new_session=True,
            )
    except OSError as error:
        ours.close()
        raise LaunchFailed(f"the {name} could not be started: {error}") from error
    except BaseException:
        ours.close()
        raise
    return process, ours


async def relay_stderr(stream: trio.abc.ReceiveStream, tail: StderrTail, relayed: trio.Event) -> None:
    """Until its end, which may never come if the process left a child of its own."""
    try:
        async for data in stream:
            tail.feed(data)
        tail.end()
    finally:
        relayed.set()
