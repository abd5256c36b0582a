"""What is evicted first. The rule is pure but for what it learns; times are seconds of one clock."""

from __future__ import annotations

from scheduler.engine.prefix.gap_history import EDGES, bucket_of
from scheduler.engine.prefix.retention import Mark, SessionKey
from scheduler.engine.prefix.return_times import ReturnTimes

_MOST_HITS = 8
"""Bound on the counted hits of a shared prefix: more say nothing more about its future."""
_LEAST_SECONDS = 0.5
_LEAST_WAIT_SECONDS = 0.001


class ByReturn:
    """Evict first what is not expected back soon, by hits per second of keeping it.

    One session's turns are judged by the session's gaps. A prefix that several sessions use is judged by all
    of its hits together: after n hits with a mean gap g, n / (n g + age), times the chance that there is
    another. Everything else is judged by what became of entries like it.
    """

    def __init__(self, sessions: int) -> None:
        self._times = ReturnTimes(sessions)

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        """Return what keeping a leaf, or a snapshot within a path, is worth, and the time until which that
        holds. What is worth least is evicted first."""
        age = now - last_used
        # Not at once: an age within a rounding of its bucket's end would be due for ever.
        until = max(last_used + EDGES[bucket_of(age) + 1], now + _LEAST_WAIT_SECONDS)
        if mark.owner is not None and not mark.shared:
            return self._times.density(mark.owner, age), until
        hits = min(hits or mark.protected, _MOST_HITS)
        if not hits or (mark.extended and not mark.shared):  # A conversation, of which this is not the end.
            return self._times.unowned_density(mark.continued or hits > 0, age), until
        seconds = max(_LEAST_SECONDS, hits * mark.gap_seconds + age)
        return hits / seconds * hits / (hits + 1), until

    def hit(self, mark: Mark, now: float) -> None:
        """A request continues from this node; `mark` is as it was before."""
        for key in mark.turns:  # Also if a client gives every request a session of its own.
            self._times.returned(key, now)
        if mark.owner is None and not mark.hits and not mark.protected:
            self._times.unowned_observed(mark.continued, now - mark.last_used, returned=True)

    def evicted(self, mark: Mark, now: float) -> None:
        for key in mark.turns:
            self._times.lost(key, now)
        if mark.owner is None and not mark.hits and not mark.protected:
            self._times.unowned_observed(mark.continued, now - mark.last_used, returned=False)

    def ended(self, key: SessionKey, kind: str, now: float) -> None:
        """A turn of a session ended, and it waits for `kind`."""
        self._times.ended(key, kind, now)

    def returned(self, key: SessionKey, now: float) -> None:
        """A request of the session came."""
        self._times.returned(key, now)
