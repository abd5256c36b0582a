"""CPU work off the event loop, no more at once than there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

import trio

from api.freed_memory import return_small_blocks

_T = TypeVar("_T")


class WorkerThreads:
    """Keeps `scheduler.prompt.preparation.Offload`.

    Large work has one thread of its own: it takes hundreds of megabytes, and nobody else waits behind it. A
    thread counts until its work is done, also where the client who wanted it has left.
    """

    def __init__(self) -> None:
        self._any = trio.CapacityLimiter(max(2, os.cpu_count() or 1))
        self._large = trio.CapacityLimiter(1)

    async def __call__(self, work: Callable[[], _T], /, *, large: bool = False) -> _T:
        if large:
            return await _in_thread(lambda: _and_give_back(work), self._large)
        return await _in_thread(work, self._any)


async def _in_thread(work: Callable[[], _T], limiter: trio.CapacityLimiter) -> _T:
    return await trio.to_thread.run_sync(lambda: _alone(work), abandon_on_cancel=True, limiter=limiter)


def _alone(work: Callable[[], _T]) -> _T:
    """What goes wrong is one request's affair. A panic of a library that is written in Rust (tokenizers,
    llguidance) is no Exception, and would end the server with everybody's streams."""
    try:
        return work()
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"a library failed: {error}") from error


def _and_give_back(work: Callable[[], _T]) -> _T:
    try:
        return work()
    finally:
        return_small_blocks()
