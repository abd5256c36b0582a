"""Health is progress: an engine that has work and makes no step is as good as dead, and is made so."""

from __future__ import annotations

from collections.abc import Callable

import trio


class StallWatch:
    """Owned by the service. `is_busy`: the engine is up and has work. `ask` may prompt a sign of life from an
    engine that has reason to be silent; `kill` ends one that gave none for `limit_seconds`."""

    def __init__(
        self,
        limit_seconds: float,
        is_busy: Callable[[], bool],
        ask: Callable[[], None],
        kill: Callable[[str], None],
    ) -> None:
        self._limit_seconds = limit_seconds
        self._is_busy = is_busy
        self._ask = ask
        self._kill = kill
        self._last_progress_at = 0.0

    def progressed(self, now: float) -> None:
        """A step, or the first work after none."""
        self._last_progress_at = now

    def seconds(self, now: float) -> float:
        """For how long nothing has come; 0 while nothing is expected."""
        return now - self._last_progress_at if self._is_busy() else 0.0

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            now = trio.current_time()
            half_at = self._last_progress_at + self._limit_seconds / 2
            end_at = self._last_progress_at + self._limit_seconds
            if not self._is_busy():
                # Work that comes meanwhile is not older than this when we look again.
                wake_at = now + self._limit_seconds / 2
            elif now < half_at:
                wake_at = half_at
            elif now < end_at:
                self._ask()
                wake_at = end_at
            else:
                self._kill(f"no step for {self._limit_seconds:g} seconds, with requests on board")
                wake_at = now + self._limit_seconds / 2
            await trio.sleep_until(wake_at)
