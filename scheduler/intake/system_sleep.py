"""Notice that the machine slept, and how long: a closed lid, a suspended virtual machine.

trio's clock stands still meanwhile, as the work does: a step that was interrupted is no stall. But a client
that gives its request a minute does not mean a minute and the night. So deadlines are kept in continuous
time, which is trio's clock and the time asleep before it.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable

import structlog
import trio

_log = structlog.get_logger("scheduler")
_LEAST_SECONDS = 1.0
"""Shorter differences are those between two readings of two clocks."""
_LOOK_SECONDS = 1.0
_MOST_SLEEPS = 64
"""Bound on the sleeps that are remembered. No deadline counts earlier ones, even if its request is older."""
# Apple's CLOCK_MONOTONIC_RAW is mach_continuous_time; Linux's stands still, as CLOCK_MONOTONIC does there.
if sys.platform == "darwin":
    _CONTINUOUS_CLOCK = time.CLOCK_MONOTONIC_RAW
else:
    _CONTINUOUS_CLOCK = time.CLOCK_BOOTTIME


def continuous_seconds() -> float:
    """Return the time of a clock that runs while the machine sleeps."""
    return time.clock_gettime(_CONTINUOUS_CLOCK)


class SleepTime:
    """How long the machine has slept, and when. Pure: both clocks are arguments; `running` is trio's."""

    def __init__(self) -> None:
        self._difference: float | None = None
        """Difference of the two clocks, at the last reading."""
        self._read_at = 0.0
        self._sleeps: deque[tuple[float, float]] = deque(maxlen=_MOST_SLEEPS)
        self.total_seconds = 0.0

    def read(self, running: float, continuous: float) -> float:
        """Take both clocks, read at the same time. Return how long the machine slept since the last
        reading."""
        difference = continuous - running
        known, last = self._difference, self._read_at
        self._read_at = running
        if known is None or difference - known < _LEAST_SECONDS:
            self._difference = difference if known is None else min(known, difference)
            return 0.0
        self._difference = difference
        slept = difference - known
        # At its earliest: what arrived since then may have arrived after the sleep, and has its whole time.
        self._sleeps.append((last, slept))
        self.total_seconds += slept
        return slept

    def before(self, running: float) -> float:
        """Return how many of `total_seconds` were slept before this time."""
        return self.total_seconds - sum(slept for at, slept in self._sleeps if at >= running)


class SleepWatch:
    """Reads the clocks once a second. `on_wake` hears of each sleep, soon after its end."""

    def __init__(
        self, sleep: SleepTime, continuous: Callable[[], float], on_wake: Callable[[float], None]
    ) -> None:
        self._sleep = sleep
        self._continuous = continuous
        self._on_wake = on_wake

    async def run(self) -> None:
        """Never returns by itself."""
        while True:
            now = trio.current_time()
            if slept := self._sleep.read(now, self._continuous()):
                _log.info("system_slept", seconds=round(slept, 1))
                self._on_wake(now)
            await trio.sleep(_LOOK_SECONDS)
