"""The engine's reports of the prefix cache: counters with every step, the content on `Inspect`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from scheduler.engine.backend import Cache
from scheduler.shared.messages import CacheCounters, DiskCounters, Inspect, Inspection

_CHECK_SECONDS = 30.0
"""The interval of integrity checks, which walk all nodes; only an idle engine runs them."""
_MAX_REPORTED_COMPLAINTS = 20


class CacheWatch:
    """Counts, and checks the tree periodically: a violated invariant raises an alarm, never a crash."""

    def __init__(self, cache: Cache | None, clock: Callable[[], float]) -> None:
        self._prefixes = None if cache is None else cache.prefixes
        self.disk: Callable[[], DiskCounters | None] = (lambda: None) if cache is None else cache.disk
        self._clock = clock
        self._checked_at = clock()
        self._complaints = 0
        self._last_complaints: list[str] = []

    def look(self, idle: bool) -> None:
        now = self._clock()
        if self._prefixes is None or not idle or now - self._checked_at < _CHECK_SECONDS:
            return
        self._checked_at = now
        found = self._prefixes.check_integrity()
        self._complaints += len(found)
        self._last_complaints = found[:_MAX_REPORTED_COMPLAINTS]
        for complaint in found:
            print(f"prefix cache: {complaint}", file=sys.stderr)

    def counters(self) -> CacheCounters:
        found = CacheCounters() if self._prefixes is None else self._prefixes.counters()
        found.complaints = self._complaints
        return found

    def inspect(self, command: Inspect, running_bytes: int, freed_bytes: int) -> Inspection:
        """Return the answer to `command`, which a plan has carried out. Complaints are those of the last
        check, so that no request waits for one."""
        prefixes = self._prefixes
        if prefixes is None:
            return Inspection(command.query, 0, None)
        return Inspection(
            command.query,
            freed_bytes if command.clear else 0,
            msgspec.structs.replace(
                prefixes.statistics(command.top, command.head_tokens),
                running_bytes=running_bytes,
                complaints=self._last_complaints,
            ),
            self.disk(),
        )
