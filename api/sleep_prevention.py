"""Keep a Mac awake while requests run.

A Mac without input sleeps after some minutes, also in the middle of an answer, and a request over the network
does not wake it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable

import structlog
import trio

_log = structlog.get_logger("serving")

LINGER_SECONDS = 60.0
"""Time after the last request: an agent's next one comes when its tool is done."""
_LOOK_SECONDS = 1.0
"""A request that is shorter may go unseen: no Mac falls asleep within it."""


class Wakefulness:
    """Whether the machine is to stay awake. Pure: `now` is an argument."""

    def __init__(self) -> None:
        self._until = float("-inf")

    def wanted(self, now: float, busy: bool) -> bool:
        """Return whether to hold off sleep. `busy` is whether requests wait or run at `now`."""
        if busy:
            self._until = now + LINGER_SECONDS
        return now < self._until


def caffeinate_command(pid: int) -> list[str]:
    """Return the command that holds off idle sleep until it or the process `pid` ends. The screen may go
    dark."""
    return ["caffeinate", "-i", "-w", str(pid)]


async def caffeinate() -> None:
    """Hold off idle sleep until cancelled."""
    try:
        command = caffeinate_command(os.getpid())
        await trio.run_process(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        _log.warning("sleep_not_prevented", error=str(error))


async def stay_awake(busy: Callable[[], bool], hold: Callable[[], Awaitable[None]] = caffeinate) -> None:
    """Hold off sleep while `busy`, and for a minute after, until cancelled."""
    rule = Wakefulness()
    while True:
        if rule.wanted(trio.current_time(), busy()):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold)
                wanted = True
                while wanted:
                    await trio.sleep(_LOOK_SECONDS)
                    wanted = rule.wanted(trio.current_time(), busy())
                nursery.cancel_scope.cancel()
        await trio.sleep(_LOOK_SECONDS)
