"""When Python's cycle collector visits everything: while no request waits or runs, and never by itself.

A full collection visits all that waits, and stops the event loop: 0.3 s with a thousand waiting
conversations. The partial ones that Python starts visit what was made lately. What only a full one finds is
garbage in cycles that outlived two of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import trio

LOOK_SECONDS = 10.0
LATEST_SECONDS = 1800.0
"""A server that is never idle collects this long after its last full collection, so that garbage has a
bound."""
OUT_OF_REACH = 1_000_000_000
"""The number of partial collections between two full ones."""


@dataclass(slots=True)
class FullCollections:
    """Decides when one is due."""

    collected_at: float
    worked: bool = False
    """Whether there were requests since the last one, without which there is no garbage to speak of."""

    def due(self, now: float, *, busy: bool) -> bool:
        self.worked = self.worked or busy
        if not self.worked or (busy and now - self.collected_at < LATEST_SECONDS):
            return False
        self.collected_at, self.worked = now, busy
        return True


async def collect_when_idle(is_busy: Callable[[], bool]) -> None:
    """Never returns by itself."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, OUT_OF_REACH)
    collections = FullCollections(trio.current_time())
    while True:
        await trio.sleep(LOOK_SECONDS)
        if collections.due(trio.current_time(), busy=is_busy()):
            gc.unfreeze()  # What a long pause has frozen (`large_work.py`).
            gc.collect()
