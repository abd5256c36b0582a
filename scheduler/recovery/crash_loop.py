"""What deaths in a row mean for admission, and out-of-memory deaths for the KV budget. Pure: `now` is an
argument."""

from __future__ import annotations

from collections import deque

from scheduler.config import RecoveryConfig

_SHARE_STEP = 0.8
_LEAST_SHARE = 0.25
"""With less, requests would wait and be computed again and again for memory that something else has taken."""


def lowered_share(share: float) -> float:
    """Of the budget for keys and values, what engines get after one that ran out of memory with `share`."""
    return max(_LEAST_SHARE, share * _SHARE_STEP)


class CrashLoopBreaker:
    """Stops admission when engines die one after the other: `max_engine_deaths` within the window."""

    def __init__(self, config: RecoveryConfig) -> None:
        self._config = config
        self._deaths: deque[float] = deque(maxlen=config.max_engine_deaths)

    def died(self, now: float) -> None:
        self._deaths.append(now)

    def reason(self, now: float) -> str | None:
        """Why nothing is admitted; None: admission is open."""
        window, bound = self._config.death_window_seconds, self._config.max_engine_deaths
        if len(self._deaths) < bound or now - self._deaths[0] > window:
            return None
        return f"the engine died {bound} times within {window:g} seconds"
