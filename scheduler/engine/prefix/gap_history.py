"""How long until something was asked for again: a histogram of gaps, and what it is worth to keep at an age.

Ages lie in buckets that grow by a factor, so that a history is a few dozen numbers, and an entry changes its
bucket at most that often before it is asked for again. The worth of an entry is the density of hits of LHD
(Beckmann and others, NSDI 2018): of all times for which it could be kept from now on, the best of expected
hits over expected seconds. It is the greatest where a return is near, not where the last use was: of sessions
that come back every minute, the one that left a second ago goes first. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

_FIRST_SECONDS = 0.5
_FACTOR = 2.0
BUCKETS = 19
"""The last begins at about a day and has no end."""
EDGES: tuple[float, ...] = (0.0, *(_FIRST_SECONDS * _FACTOR**power for power in range(BUCKETS)))
"""Where each bucket begins and the one before ends, in seconds; the last entry bounds the last one."""
_NEGLIGIBLE = 0.01
"""Share of what is alive below which later buckets change no result."""


def bucket_of(age_seconds: float) -> int:
    """Return the bucket of an age; of a negative one the first."""
    if age_seconds < _FIRST_SECONDS:
        return 0
    bucket = min(BUCKETS - 1, 1 + int(log(age_seconds / _FIRST_SECONDS) / log(_FACTOR)))
    # The logarithm's last bit must not put an age into a bucket that it has left.
    if bucket < BUCKETS - 1 and age_seconds >= EDGES[bucket + 1]:
        return bucket + 1
    return bucket if age_seconds >= EDGES[bucket] else bucket - 1


class GapHistory:
    """How many reached each bucket, and how many of them returned in it; it forgets by halves."""

    __slots__ = ("_most", "reached", "returned")

    def __init__(self, most: float) -> None:
        """`most`: the observations after which all count half."""
        self._most = most
        self.reached = [0.0] * BUCKETS
        self.returned = [0.0] * BUCKETS

    def waited(self, start: int, end: int) -> None:
        """Count one that left the buckets from `start` to before `end` without a return."""
        for bucket in range(start, end):
            self.reached[bucket] += 1.0
        if start == 0:
            self._fade()

    def came(self, bucket: int) -> None:
        """Count one that returned in this bucket."""
        self.reached[bucket] += 1.0
        self.returned[bucket] += 1.0
        if bucket == 0:
            self._fade()

    def _fade(self) -> None:
        if self.reached[0] > self._most:
            self.reached = [count / 2 for count in self.reached]
            self.returned = [count / 2 for count in self.returned]


def hazards(prior: Sequence[float], histories: Sequence[GapHistory], weight: float) -> list[float]:
    """Return each bucket's share of returns among those that reach it: the last history's, as far as it has
    observations, else those of the ones before; a prior counts like `weight` observations."""
    blended = list(prior)
    for history in histories:
        reached, returned = history.reached, history.returned
        blended = [
            (came + weight * before) / (seen + weight)
            for came, seen, before in zip(returned, reached, blended, strict=True)
        ]
    return blended


def hit_densities(shares: Sequence[float]) -> tuple[float, ...]:
    """Return, for each bucket, hits per second of keeping what has reached it, for the time for which that is
    the most."""
    return tuple(_hit_density(shares, bucket) for bucket in range(BUCKETS))


def _hit_density(shares: Sequence[float], bucket: int) -> float:
    best = hits = seconds = 0.0
    alive = 1.0
    for at in range(bucket, BUCKETS):
        share = shares[at]
        hits += alive * share
        seconds += alive * (EDGES[at + 1] - EDGES[at]) * (1.0 - share / 2)
        best = max(best, hits / seconds)
        alive *= 1.0 - share
        if alive < _NEGLIGIBLE:
            break
    return best
