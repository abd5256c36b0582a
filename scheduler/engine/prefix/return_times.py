"""What is evicted first: what is not expected back soon, by hits per second of keeping it.

One session's turns are judged by the session's gaps. A prefix that several sessions use is judged by all of
its hits together: after n hits with a mean gap g, n / (n g + age), times the chance that there is another.
Everything else is judged by what became of entries like it.

A session waits from the end of a turn until its next request. What it waits for is its `kind`: the tools that
its answer called, or how the answer ended. A session with few gaps is judged by its kind, a kind with few by
all. Memory is bounded: of sessions, kinds and kinds of a session the longest silent goes. Pure: callers pass
the time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from scheduler.engine.prefix.gap_history import (
    BUCKETS,
    EDGES,
    GapHistory,
    bucket_of,
    hazards,
    hit_densities,
)
from scheduler.engine.prefix.retention import Mark, SessionKey

_PRIOR = tuple(0.15 if EDGES[bucket] < 64.0 else 0.05 for bucket in range(BUCKETS))
"""The prior before anything is known: two of three come back within a minute, most of the others never."""
_FIRST_PRIOR = (0.01,) * BUCKETS
"""The prior of what no session owns: most is asked once."""
_WEIGHT = 2.0
_UNOWNED_WEIGHT = 32.0
_RENEWED_AFTER = 16
_SESSION_GAPS = 48.0
_KIND_GAPS = 512.0
_MOST_KINDS = 256
_MOST_KINDS_PER_SESSION = 4
_MOST_HITS = 8
"""Bound on the counted hits of a shared prefix: more say nothing more about its future."""
_LEAST_SECONDS = 0.5
_LEAST_WAIT_SECONDS = 0.001


@dataclass(slots=True)
class _Waiting:
    """A session. `counted`: the buckets of this wait that its histories have seen it leave. `densities`: by
    the age's bucket, what was known when this wait began; empty until it is asked for."""

    since: float | None = None  # None: a turn runs, or none has ended.
    kind: str = ""
    counted: int = 0
    gaps: OrderedDict[str, GapHistory] = field(default_factory=OrderedDict)
    densities: tuple[float, ...] = ()


@dataclass(slots=True)
class _Unowned:
    """What no session owns. `densities` are renewed after some observations."""

    prior: tuple[float, ...]
    gaps: GapHistory = field(default_factory=lambda: GapHistory(_KIND_GAPS))
    densities: tuple[float, ...] = ()
    observed: int = 0

    def observe(self, age_seconds: float, returned: bool) -> None:
        bucket = bucket_of(age_seconds)
        self.gaps.waited(0, bucket)
        if returned:
            self.gaps.came(bucket)
        self.observed += 1

    def density(self, age_seconds: float) -> float:
        if not self.densities or self.observed >= _RENEWED_AFTER:
            self.observed = 0
            self.densities = hit_densities(hazards(self.prior, (self.gaps,), _UNOWNED_WEIGHT))
        return self.densities[bucket_of(age_seconds)]


class ReturnTimes:
    """What was learned, of at most `sessions` sessions."""

    def __init__(self, sessions: int) -> None:
        self._most_sessions = sessions
        self._sessions: OrderedDict[SessionKey, _Waiting] = OrderedDict()
        self._kinds: OrderedDict[tuple[str, str], GapHistory] = OrderedDict()
        self._all = GapHistory(_KIND_GAPS)
        self._forgotten = _Unowned(_FIRST_PRIOR)  # Of sessions that are not known any more.
        # Of what no session owns: first turns, and turns that continue something.
        self._unowned = (_Unowned(_FIRST_PRIOR), _Unowned(_PRIOR))

    def __len__(self) -> int:
        return len(self._sessions)

    def worth(self, mark: Mark, last_used: float, hits: int, now: float) -> tuple[float, float]:
        """Return what keeping a leaf, or a snapshot within a path, is worth, and the time until which that
        holds. What is worth least is evicted first."""
        age = now - last_used
        # Not at once: an age within a rounding of its bucket's end would be due for ever.
        until = max(last_used + EDGES[bucket_of(age) + 1], now + _LEAST_WAIT_SECONDS)
        if mark.owner is not None and not mark.shared:
            return self.density(mark.owner, age), until
        hits = min(hits or mark.protected, _MOST_HITS)
        if not hits or (mark.extended and not mark.shared):  # A conversation, of which this is not the end.
            return self._unowned[mark.continued or hits > 0].density(age), until
        seconds = max(_LEAST_SECONDS, hits * mark.gap_seconds + age)
        return hits / seconds * hits / (hits + 1), until

    def hit(self, mark: Mark, now: float) -> None:
        """Note that a request continues from this node; `mark` is as it was before."""
        for key in mark.turns:  # Also if a client gives every request a session of its own.
            self.returned(key, now)
        self._observe(mark, now, returned=True)

    def evicted(self, mark: Mark, now: float) -> None:
        for key in mark.turns:
            self.lost(key, now)
        self._observe(mark, now, returned=False)

    def _observe(self, mark: Mark, now: float, returned: bool) -> None:
        if mark.owner is None and not mark.hits and not mark.protected:
            self._unowned[mark.continued].observe(now - mark.last_used, returned)

    def ended(self, key: SessionKey, kind: str, now: float) -> None:
        """Note that a turn of the session has ended: from now on the session waits for `kind`."""
        waiting = self._sessions.setdefault(key, _Waiting())
        self._sessions.move_to_end(key)
        waiting.since, waiting.kind, waiting.counted, waiting.densities = now, kind, 0, ()
        if len(self._sessions) > self._most_sessions:
            oldest = next(iter(self._sessions))
            self.lost(oldest, now)
            del self._sessions[oldest]

    def returned(self, key: SessionKey, now: float) -> None:
        """Note that a request has come for what the session's last turn left."""
        waiting = self._sessions.get(key)
        if waiting is None or waiting.since is None:
            return
        bucket = bucket_of(now - waiting.since)
        for history in self._histories(key, waiting):
            history.waited(waiting.counted, bucket)
            history.came(bucket)
        waiting.since = None

    def lost(self, key: SessionKey, now: float) -> None:
        """Count how long a session has not returned: what it left is evicted. It may return yet."""
        waiting = self._sessions.get(key)
        if waiting is None or waiting.since is None:
            return
        bucket = bucket_of(now - waiting.since)
        for history in self._histories(key, waiting):
            history.waited(waiting.counted, bucket)
        waiting.counted = max(waiting.counted, bucket)

    def density(self, key: SessionKey, age_seconds: float) -> float:
        """Return the expected hits per second of keeping what the session left that long ago."""
        waiting = self._sessions.get(key)
        if waiting is None:
            return self._forgotten.density(age_seconds)
        if not waiting.densities:
            kind, own = self._kinds.get((key[0], waiting.kind)), waiting.gaps.get(waiting.kind)
            known = [self._all, *(history for history in (kind, own) if history is not None)]
            waiting.densities = hit_densities(hazards(_PRIOR, known, _WEIGHT))
        return waiting.densities[bucket_of(age_seconds)]

    def _histories(self, key: SessionKey, waiting: _Waiting) -> tuple[GapHistory, ...]:
        kind = key[0], waiting.kind
        if kind not in self._kinds:
            self._kinds[kind] = GapHistory(_KIND_GAPS)
        if waiting.kind not in waiting.gaps:
            waiting.gaps[waiting.kind] = GapHistory(_SESSION_GAPS)
        self._kinds.move_to_end(kind)
        waiting.gaps.move_to_end(waiting.kind)
        found = self._all, self._kinds[kind], waiting.gaps[waiting.kind]
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        if len(waiting.gaps) > _MOST_KINDS_PER_SESSION:
            waiting.gaps.popitem(last=False)
        return found
