"""Keep Python's cycle collector off during large work, and until most of what the work made is gone.

A collection visits every object made since the last one and stops all threads: 95 ms for 62,000 validated
messages, which have no cycles and are freed 0.1 s later, when the request is decoded.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from threading import Lock

MOST_SECONDS = 5.0
"""Bound on a pause while large work never ceases: objects with cycles (errors with their frames) are kept
that long."""


class CollectorPause:
    """Thread-safe. A pause begins with large work, and ends a moment after the last of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._working = 0
        self._since: float | None = None

    def begin(self) -> None:
        """Large work begins."""
        with self._lock:
            self._working += 1
            self._since = self._clock() if self._since is None else self._since
            gc.disable()

    def end(self) -> None:
        """Large work has ended. `resume` must follow, when the next stage has had time to begin."""
        with self._lock:
            self._working -= 1
            if self._since is not None and self._clock() - self._since > MOST_SECONDS:
                # What was made since is in the youngest generation, and would be visited in one piece.
                gc.freeze()
                self._resume()

    def resume(self) -> None:
        """End the pause, unless large work goes on."""
        with self._lock:
            if not self._working:
                self._resume()

    def _resume(self) -> None:
        self._since = None
        gc.enable()


COLLECTOR = CollectorPause()
"""The pause of this process."""
