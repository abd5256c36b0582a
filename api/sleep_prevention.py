"""Keep a Mac awake while requests run.

A Mac without input sleeps after some minutes, also in the middle of an answer, and a request over the network
does not wake it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable

import structlog
import trio

_log = structlog.get_logger("serving")

_LOOK_SECONDS = 1.0
"""A request that is shorter may go unseen: no Mac falls asleep within it."""
HOLD_SECONDS, RENEW_SECONDS = 120, 59.0
"""An agent's next request comes when its tool is done: each hold lasts a minute past the next look."""


async def caffeinate() -> None:
    """Hold off idle sleep for two minutes, or until cancelled. The screen may go dark."""
    command = ["caffeinate", "-i", "-t", str(HOLD_SECONDS)]
    try:
        await trio.run_process(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        _log.warning("sleep_not_prevented", error=str(error))


async def stay_awake(busy: Callable[[], bool], hold: Callable[[], Awaitable[None]] = caffeinate) -> None:
    """Hold off sleep while `busy`, and for a minute after, until cancelled."""
    async with trio.open_nursery() as nursery:
        while True:
            if busy():
                nursery.start_soon(hold)
                await trio.sleep(RENEW_SECONDS)
            await trio.sleep(_LOOK_SECONDS)
