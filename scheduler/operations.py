"""The operators' view of the scheduler: reports, gauges, the prefix cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import trio

from scheduler.engines.engine import Engine, EngineProcess
from scheduler.engines.pool import Pool
from scheduler.engines.together import last_step_seconds, stalled_seconds, together
from scheduler.errors import EndedByOperator, Unavailable, UnknownRequest
from scheduler.requests.record import StreamRecord
from scheduler.requests.table import AWAITING, QUEUE
from scheduler.shared.messages import Inspect, Inspection
from scheduler.statistics import (
    PieceStatistics,
    RequestReport,
    SchedulerReport,
    SchedulerStatistics,
    WaitStatistics,
)
from scheduler.telemetry import observation
from scheduler.telemetry.request_recorder import KEPT, RecentRequests

MOST_CHOICES = 64
"""The most choices of one request in a report: a body of embeddings has thousands of texts under one id."""


class Operations:
    """Reads the pool, and changes nothing but the prefix caches, which it can clear, and that it can end a
    request."""

    def __init__(
        self,
        pool: Pool,
        pieces: Callable[[], PieceStatistics],
        recent: RecentRequests,
        model_waits_for: Callable[[], str] = str,
    ) -> None:
        """`pieces`: returns what is kept of prompts. `model_waits_for`: what the model must do before any
        queued request is served, or an empty string."""
        self._recent = recent
        self._model_waits_for = model_waits_for
        self._pieces, self._observed_pieces = pieces, PieceStatistics()
        self._pool = pool
        self._requests, self._queue, self._admission = pool.requests, pool.queue, pool.admission
        self.metrics = pool.metrics

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Return what the check at load found necessary; empty until an engine is ready."""
        ready = self._pool.ready
        return () if ready is None else ready.fallbacks

    def statistics(self) -> SchedulerStatistics:
        now = trio.current_time()
        blocked = self._admission.blocked(now)
        return SchedulerStatistics(
            queued=len(self._queue),
            in_engine=len(self._pool),
            draining=self._admission.draining,
            stalled_seconds=stalled_seconds(self._pool, now),
            engine=self._pool.statistics(),
            blocked=blocked,
            blocked_seconds=0.0 if blocked is None else self._admission.unblock_seconds(now),
            clearing=self._clearing if self._queue_waits_for == "quarantine" else None,
        )

    def report(self) -> SchedulerReport:
        """Return all waiting and running requests, and the bounds. Too expensive to call every second."""
        now = trio.current_time()
        engines = tuple(engine.statistics(now) for engine in self._pool)
        records = tuple(self._pool.records)
        return SchedulerReport(
            draining=self._admission.draining,
            blocked=self._admission.blocked(now),
            departures_per_second=self._admission.rate.per_second(now),
            last_step_seconds=last_step_seconds(self._pool, now),
            kv_cache_share=min((engine.kv_cache_share for engine in engines), default=1.0),
            prefill_chunk_ceiling=min((engine.prefill_chunk_ceiling for engine in engines), default=0),
            engine_bound_requests=self._pool.credits,
            queue=self._queue.statistics(now),
            waits=waits_of(self._admission.tokenizing, self._queued, self._queue_waits_for, records, now),
            running=tuple(record.report(now) for record in records),
            engines=engines,
            prompt_pieces=self._pieces(),
        )

    @property
    def _queued(self) -> Iterable[StreamRecord]:
        return self._requests.at(QUEUE).values()

    @property
    def _queue_waits_for(self) -> str:
        """Return why the queue's next request is not in an engine."""
        if self._model_waits_for() or self._pool.held:
            return "model"
        if self._pool.ready is None:
            return "no_engine"
        return "quarantine" if any(one.room and one.quarantined for one in self._pool) else "engines_full"

    @property
    def queue_waits_for(self) -> str:
        """Return in words what the queue waits for beside its turn, for clients; an empty string: nothing."""
        match self._queue_waits_for:
            case "no_engine":
                return "an engine to be ready"
            case "quarantine":
                return self._clearing
            case _:
                return self._model_waits_for()

    @property
    def _clearing(self) -> str:
        suspects = [one.suspect for one in self._pool if one.quarantined and one.suspect is not None]
        if not suspects:
            return "a request with which engines died, which is to compute alone"
        record = suspects[0]
        computed, tokens = record.prefilled_tokens, len(record.submit.prompt)
        return (
            f"a request with which engines died, which computes alone ({computed} of {tokens} prompt tokens)"
        )

    def request_reports(self, public_id: str) -> list[RequestReport]:
        """Return a report of each choice of a request that waits, runs, or was among the last to end,
        MOST_CHOICES at most. Raise UnknownRequest. O(requests): for a page that opens one."""
        now = trio.current_time()
        found = self._recent.request_reports(public_id)
        for record in self._pool.records:
            if record.request.public_id == public_id:
                found.append(record.report(now, with_spans=True))
        for record in self._queued:
            if record.request.public_id == public_id:
                report = record.report(now, with_spans=True)
                found.append(replace(report, waits_for=self._queue_waits_for))
        if not found:
            raise UnknownRequest(
                f"no request {public_id!r} waits or runs, and it is not among the last {KEPT} that ended"
            )
        return found[:MOST_CHOICES]

    def end_request(self, public_id: str) -> int:
        """End a request of any tenant that waits or runs, and return how many choices it had. Raise
        UnknownRequest."""
        every = (*self._pool.records, *self._queued)
        found = [one for one in every if one.request.public_id == public_id and one.outcome is None]
        if not found:
            raise UnknownRequest(f"no request {public_id!r} waits or runs")
        self._pool.end(found, EndedByOperator("an operator ended this request"))
        return len(found)

    def observe(self) -> None:
        """Update every gauge for a scrape: ages grow while nothing happens. O(flows)."""
        now = trio.current_time()
        for engine in self._pool:
            self._observe_engine(engine, now)
        conditions = ["draining" if one.draining else one.condition.value for one in self._pool]
        observation.observe_engines(self.metrics, conditions)
        self.observe_queue()
        pieces = self._pieces()
        observation.observe_pieces(self.metrics, pieces, self._observed_pieces)
        self._observed_pieces = pieces
        observation.observe_flows(self.metrics, self._queue.statistics(now).flows)

    @staticmethod
    def _observe_engine(engine: Engine, now: float) -> None:
        process = engine.process
        if process is not None and not process.budget_inspected:
            # The reply carries the KV budget; no caller waits for it.
            process.send(Inspect(query=0, top=0))
            process.budget_inspected = True
        observation.observe_states(engine.metrics, engine.on_board.values())
        engine.metrics.stalled_seconds.set(engine.stalled_seconds(now))
        engine.metrics.last_step_age.set(engine.last_step_seconds(now) or 0.0)

    def observe_queue(self) -> None:
        """Update the gauges of waiting requests, and of those that engines hold."""
        self.metrics.queued.set(len(self._queue))
        self.metrics.queued_tokens.set(self._queue.prompt_tokens)
        self.metrics.oldest_queued.set(self._queue.oldest_seconds(trio.current_time()))
        self.metrics.awaiting_engine.set(len(self._requests.at(AWAITING)))
        for engine in self._pool:
            engine.metrics.on_board.set(engine.requests)

    async def inspect_engines(
        self, clear: bool = False, top: int = 10, head_tokens: int = 0
    ) -> dict[str, Inspection]:
        """Return what each engine holds, by its name; with `clear`, after evicting all
        prefixes that no row uses. An engine that is not running or does not answer is left out; raise
        Unavailable if none answers."""
        found: dict[str, Inspection] = {}
        refusals: list[Unavailable] = []

        async def inspect(name: str, process: EngineProcess) -> None:
            try:
                found[name] = await process.inspections.inspect(clear, top, head_tokens)
            except Unavailable as error:
                refusals.append(error)

        async with trio.open_nursery() as nursery:
            for engine in self._pool:
                if engine.process is not None:
                    nursery.start_soon(inspect, engine.name, engine.process)
        if not found:
            raise (
                refusals[0] if refusals else Unavailable("the engine is not running", retry_after_seconds=1.0)
            )
        return dict(sorted(found.items(), key=lambda pair: int(pair[0])))

    async def inspect_cache(self, clear: bool = False, top: int = 10, head_tokens: int = 0) -> Inspection:
        """Return what the prefix caches of all engines hold together, as `inspect_engines` does."""
        return together((await self.inspect_engines(clear, top, head_tokens)).values(), top)


@dataclass(slots=True)
class _Tally:
    """Requests of one tenant that wait for one reason."""

    requests: int = 0
    oldest: StreamRecord | None = None

    def add(self, record: StreamRecord) -> None:
        self.requests += 1
        if self.oldest is None or record.arrived_at < self.oldest.arrived_at:
            self.oldest = record


def waits_of(
    tokenizing: Mapping[str, int],
    queued: Iterable[StreamRecord],
    queue_waits_for: str,
    held: Iterable[StreamRecord],
    now: float,
) -> tuple[WaitStatistics, ...]:
    """Return a line for each tenant and reason, the one with the most requests first. `tokenizing`: requests
    by tenant. `queue_waits_for`: why the queue's next request is not in an engine. `held`: those that engines
    have. O(requests)."""
    found: dict[tuple[str, str], _Tally] = defaultdict(_Tally)
    for tenant, requests in tokenizing.items():
        found[tenant, "tokenizing"].requests = requests
    for record in queued:
        found[record.request.tenant, queue_waits_for].add(record)
    for record in held:
        if reason := record.waits_for:
            found[record.request.tenant, reason].add(record)
    lines = [_line(tenant, reason, tally, now) for (tenant, reason), tally in found.items()]
    return tuple(sorted(lines, key=lambda line: -line.requests))


def _line(tenant: str, reason: str, tally: _Tally, now: float) -> WaitStatistics:
    oldest = tally.oldest
    if oldest is None:
        return WaitStatistics(tenant, reason, tally.requests, None, None)
    request = oldest.request
    return WaitStatistics(tenant, reason, tally.requests, now - oldest.arrived_at, request.public_id)
