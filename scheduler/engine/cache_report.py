"""The engine's reports of the prefix cache: counters with every step, the content on `Inspect`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container

from scheduler.engine.backend import Cache, DiskWatch
from scheduler.engine.prefix.cache_statistics import CacheStatistics
from scheduler.shared.messages import CacheCounters, Inspect, Inspection
from scheduler.shared.reports import CacheReport, DiskReport, PinReport, PrefixReport

_CHECK_SECONDS = 30.0
"""The interval of integrity checks, which walk all nodes; only an idle engine runs them."""
_MAX_REPORTED_COMPLAINTS = 20


class CacheWatch:
    """Counts, and checks the tree periodically: a violated invariant raises an alarm, never a crash."""

    def __init__(self, cache: Cache | None, clock: Callable[[], float]) -> None:
        self._prefixes = None if cache is None else cache.prefixes
        self._disk = (lambda: None) if cache is None else cache.disk
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
        prefixes = self._prefixes
        if prefixes is None:
            return CacheCounters()
        watched = self._disk()
        disk = None if watched is None else watched.tier.statistics()
        return CacheCounters(
            query_tokens=prefixes.query_tokens,
            hit_tokens=prefixes.hit_tokens,
            stored_tokens=prefixes.stored_tokens,
            evicted_budget_tokens=prefixes.evicted_tokens["budget"],
            evicted_superseded_tokens=prefixes.evicted_tokens["superseded"],
            evicted_cleared_tokens=prefixes.evicted_tokens["cleared"],
            complaints=self._complaints,
            kept_bytes=prefixes.nbytes,
            disk_hit_tokens=0 if watched is None else watched.disk_tokens,
            disk_reads=0 if disk is None else disk.reads,
            disk_writes=0 if disk is None else disk.writes,
            disk_dropped_writes=0 if disk is None else disk.dropped_writes,
            disk_errors=0 if disk is None else sum(disk.errors.values()),
            disk_bytes=0 if disk is None else disk.nbytes,
            kept_tokens=prefixes.kept_tokens,
        )

    def inspect(
        self, command: Inspect, running_bytes: int, freed_bytes: int, unpinned: Container[str]
    ) -> Inspection:
        """Return the answer to `command`, which a plan has carried out. Complaints are those of the last
        check, so that no request waits for one."""
        prefixes = self._prefixes
        if prefixes is None:
            return Inspection(command.query, 0, None)
        report = _cache_report(
            prefixes.statistics(command.top, command.head_tokens),
            prefixes.budget_bytes,
            running_bytes,
            self._last_complaints,
        )
        disk = self._disk()
        return Inspection(
            command.query,
            freed_bytes if command.clear else 0,
            report,
            None if disk is None else _disk_report(disk),
            unpinned=command.unpin in unpinned,
        )


def _cache_report(
    statistics: CacheStatistics, budget_bytes: int, running_bytes: int, complaints: list[str]
) -> CacheReport:
    size = statistics.size
    return CacheReport(
        budget_bytes=budget_bytes,
        running_bytes=running_bytes,
        nodes=size.nodes,
        tokens=size.tokens,
        snapshots=size.snapshots,
        segment_bytes=size.segment_bytes,
        snapshot_bytes=size.snapshot_bytes,
        key_bytes=size.key_bytes,
        replaced_bytes=size.replaced_bytes,
        leases=statistics.leases,
        query_tokens=statistics.query_tokens,
        hit_tokens=statistics.hit_tokens,
        stored_tokens=statistics.stored_tokens,
        evicted_tokens={str(reason): count for reason, count in statistics.evicted_tokens.items()},
        shared_prefixes=[
            PrefixReport(prefix.tokens, prefix.references, prefix.hits, list(prefix.head))
            for prefix in statistics.top_prefixes
        ],
        complaints=complaints,
        held_bytes=statistics.held_bytes,
        refused_holds=statistics.refused_holds,
        pins=[PinReport(pin.name, pin.tokens, pin.cached_tokens) for pin in statistics.pins],
    )


def _disk_report(disk: DiskWatch) -> DiskReport:
    found = disk.tier.statistics()
    return DiskReport(
        files=found.files,
        nbytes=found.nbytes,
        pending_bytes=found.pending_bytes,
        reads=found.reads,
        read_bytes=found.read_bytes,
        writes=found.writes,
        write_bytes=found.write_bytes,
        dropped_writes=found.dropped_writes,
        evicted_files=found.evicted_files,
        errors={str(kind): count for kind, count in found.errors.items()},
        hit_tokens=disk.disk_tokens,
    )
