"""How fast requests leave the engine, to predict when there will be room. Pure: `now` is an argument."""

from __future__ import annotations

import math

_HALF_LIFE_SECONDS = 30.0
_FIRST_GUESS_SECONDS = 1.0
_LONGEST_RETRY_SECONDS = 60.0
_ENOUGH_DEPARTURES = 8
"""Departures before the rate is a measurement and not the initial guess."""


class DrainRate:
    """The mean gap between two departures from a full engine, weighted towards recent ones.

    Only a full engine counts: otherwise the gaps measure how fast requests arrive, and a burst after a quiet
    hour would get estimates many times too long. Weights decay with time, not with the number of departures:
    rows that were admitted together leave together, and thirty gaps of zero must not hide the second before
    them.
    """

    def __init__(self) -> None:
        self._seconds = _FIRST_GUESS_SECONDS
        self._departures = 1.0
        self._seen = 0
        self._since: float | None = None

    def pause(self) -> None:
        """The engine has room, so departures are no measurement until it is full again."""
        self._since = None

    def resume(self, now: float) -> None:
        """The engine is full from now on."""
        self._since = now

    def follow(self, now: float, *, full: bool) -> None:
        """Update whether the engine is full."""
        if not full:
            self.pause()
        elif self._since is None:
            self.resume(now)

    def departed(self, now: float) -> None:
        if self._since is not None:
            gap = now - self._since
            weight = math.exp2(-gap / _HALF_LIFE_SECONDS)
            if not self._seen:
                # Drop the initial guess.
                self._seconds = self._departures = 0.0
            self._seconds = self._seconds * weight + gap
            self._departures = self._departures * weight + 1.0
            self._seen += 1
        self._since = now

    def gap_seconds(self, now: float) -> float:
        """Return the seconds between two departures; longer while the next one is overdue, as if it happened
        now."""
        silence = self._silence(now)
        weight = math.exp2(-silence / _HALF_LIFE_SECONDS)
        overdue = (self._seconds * weight + silence) / (self._departures * weight + 1.0)
        return max(self._seconds / self._departures, overdue)

    def wait_seconds(self, departures: float, now: float) -> float:
        """Return the seconds until this many requests have left. The time since the last departure counts
        once, not for each of them: when a whole batch leaves together, it is long before all of them."""
        return max(departures * self.gap_seconds(now), self._silence(now))

    def _silence(self, now: float) -> float:
        return 0.0 if self._since is None else min(now - self._since, _LONGEST_RETRY_SECONDS)

    def per_second(self, now: float) -> float | None:
        """Return the departures per second, or None until they are measured."""
        return 1.0 / max(self.gap_seconds(now), 1e-6) if self._seen >= _ENOUGH_DEPARTURES else None

    def seconds_until(self, departures: int, now: float) -> float:
        """Return a whole number of seconds, at least 1, as a `Retry-After` header requires."""
        wait = self.wait_seconds(departures, now)
        return float(math.ceil(min(max(wait, 1.0), _LONGEST_RETRY_SECONDS)))
