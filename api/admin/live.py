"""`GET /`: the live page, and `/live`: the stream of snapshots that feeds it.

The page is one file that sends requests only to this server. It contains no secret and needs no key; the
stream does.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import trio
from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from api.access.auth import operator
from api.admin.cache import cache_object
from api.admin.operations import rounded
from api.answers import sse
from api.answers.openapi import LIVE
from api.served_models import ServedModels
from scheduler.errors import SchedulerError
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.service import Scheduler
from scheduler.shared.counters import Counters
from scheduler.shared.figures import figures_of
from scheduler.statistics import FlowStatistics, MemberStatistics
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.instruments import value_of

PAGE = Path(__file__).with_name("live.html").read_text("utf-8")
SNAPSHOT_SECONDS = 0.5
CACHE_SECONDS = 3.0
"""Time between two inspections of the cache, each of which costs the engine a turn."""
TENANTS_SHOWN = 50
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " connect-src 'self'; img-src data:; frame-ancestors 'none'"
)
_encoder = msgspec.json.Encoder()


def live_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"])

    # HEAD as well: Claude Code uses it to test whether a server is there.
    @router.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(
            PAGE, headers={"content-security-policy": _POLICY, "x-content-type-options": "nosniff"}
        )

    feeds: dict[str, LiveFeed] = {}

    @router.get(
        "/live",
        dependencies=[Depends(operator)],
        responses=LIVE,
        status_code=200,
        response_class=LiveStream,
    )
    async def live(model: str | None = None) -> Response:
        """Stream server-sent events of a model, or of the first one: `snapshot` twice a second, `cache` every
        few. `history` of the first snapshot has the last five minutes, of each other the samples since."""
        found = models.model(model)
        return LiveStream(feeds.setdefault(found.name, LiveFeed(models.fleet, found)))

    return router


class LiveFeed:
    """A model's state, for all of its viewers: it is read twice a second at most, for the first that
    asks, and so is its cache every few seconds."""

    def __init__(self, fleet: Fleet, model: Model) -> None:
        self.scheduler = model.scheduler
        self._fleet = fleet
        self._model = model
        self._body: dict[str, Any] = {}
        self._ended = self._sampled = 0
        """The numbers of the last finished request and the last sample of this state."""
        self._events: dict[tuple[int, int], bytes] = {}
        """This state's event by what a viewer has seen before: one for all, but for those who are new."""
        self._read_at = self._inspected_at = -math.inf
        self._cache = b""
        self._inspections = 0
        self.over = False
        """Whether a draining server has no more requests, or another process takes them."""

    def snapshot(self, seen: tuple[int, int], now: float) -> tuple[tuple[int, int], bytes]:
        """Return what a viewer has seen after this, and the event with the state, of the last moments or a
        new one, and with the requests and the samples since `seen`."""
        # A viewer's sleep may end a little early.
        if now - self._read_at >= 0.99 * SNAPSHOT_SECONDS:
            self._read_at = now
            models = [_model_line(model) for model in self._fleet]
            self._body = {**snapshot(self.scheduler), "model": self._model.name, "models": models}
            self._ended, self._sampled = self.scheduler.recent.number, self.scheduler.history.number
            self._events = {}
            self.over = self._is_over()
        if (event := self._events.get(seen)) is None:
            event = self._events[seen] = self._encoded(*seen)
        return (self._ended, self._sampled), event

    def _encoded(self, ended: int, sampled: int) -> bytes:
        recent, history = self.scheduler.recent, self.scheduler.history
        # What is newer than the state comes with the next one.
        ended_since = recent.number - self._ended
        requests = recent.since(ended)[: -ended_since or None]
        sampled_since = history.number - self._sampled
        samples = {name: column[: -sampled_since or None] for name, column in history.since(sampled).items()}
        news = {"recent": rounded([asdict(one) for one in requests]), "history": rounded(samples)}
        return sse.named(b"snapshot", _encoder.encode({**self._body, **news}))

    def cache(self, seen: int, now: float) -> tuple[int, bytes]:
        """Return the number of the last inspection and its event, which is empty if it is `seen` or old."""
        is_news = self._inspections != seen and now - self._inspected_at < 2 * CACHE_SECONDS
        return self._inspections, self._cache if is_news else b""

    async def inspect(self) -> None:
        """Inspect the cache, unless that was done a moment ago."""
        now = trio.current_time()
        if now - self._inspected_at < CACHE_SECONDS:
            return
        self._inspected_at = now
        # If there is no engine, or it does not answer, the snapshots show that.
        with suppress(SchedulerError):
            inspection = await self.scheduler.operations.inspect_cache(top=12)
            self._cache = sse.named(b"cache", _encoder.encode(cache_object(inspection)))
            self._inspections += 1

    def _is_over(self) -> bool:
        if self._fleet.retiring:
            return True
        each = [model.scheduler.operations.statistics() for model in self._fleet]
        return all(now.draining and not now.queued and not now.in_engine for now in each)


class LiveStream(Response):
    """Streams a feed until the reader leaves, or the feed is over: the page connects again."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed) -> None:
        super().__init__(headers=sse.HEADERS)
        del self.headers["content-length"]
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            # In a task of its own: a hung engine does not answer, and then the snapshots matter most.
            nursery.start_soon(self._inspect_forever)
            await self._send_snapshots(send)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_snapshots(self, send: Send) -> None:
        seen, inspected = (0, 0), 0
        while True:
            now = trio.current_time()
            seen, event = self._feed.snapshot(seen, now)
            if self._feed.over:
                return
            inspected, cache = self._feed.cache(inspected, now)
            await send({"type": "http.response.body", "body": event + cache, "more_body": True})
            await trio.sleep(SNAPSHOT_SECONDS)

    async def _inspect_forever(self) -> None:
        while True:
            await self._feed.inspect()
            await trio.sleep(CACHE_SECONDS)


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """Return a model's current state for the page: of all its engines together, and of each."""
    operations, metrics = scheduler.operations, scheduler.metrics
    statistics, report = operations.statistics(), operations.report()
    queue = asdict(report.queue)
    queue["tenants"] = _tenants(report.queue.flows)
    del queue["flows"]
    engines = [_engine_line(metrics.of_engine(engine.engine), engine) for engine in report.engines]
    totals = [engine.totals for engine in metrics.engines]
    body = {
        "time": trio.current_time(),
        "engine": {
            "condition": statistics.engine.condition.value,
            "restarts": statistics.engine.restarts,
            "last_death": statistics.engine.last_death,
            "stalled_seconds": statistics.stalled_seconds,
            "draining": statistics.draining,
            "blocked": statistics.blocked,
            "clearing": statistics.clearing,
        },
        "engines": engines,
        "slots": sum(line["slots"] for line in engines),
        "queue": queue,
        "running": [asdict(one) for one in report.running],
        "waits": [asdict(one) for one in report.waits[:TENANTS_SHOWN]],
        **{
            figure.live: sum(map(read, totals)) for figure, read in _SHOWN.items() if figure.kind == "counter"
        },
        "accepted_draft_tokens": sum(
            value_of(accepted)
            for engine in metrics.engines
            for accepted in engine.accepted_draft_tokens.values()
        ),
        "draft_tokens": sum(
            value_of(proposed) for engine in metrics.engines for proposed in engine.draft_tokens.values()
        ),
        "malformed_calls": list(metrics.malformed_calls.series()),
        "memory": {name: sum(line[name] for line in engines) for name in _MEMORY},
    }
    result: dict[str, Any] = rounded(body)
    return result


_SHOWN = {figure: read for figure, read in figures_of(Counters).items() if figure.live}
_MEMORY = ("running_bytes", "prefix_bytes", "budget_bytes", "weights_bytes")


def _engine_line(engine: EngineMetrics, statistics: MemberStatistics) -> dict[str, Any]:
    """Return what the page shows of one engine."""
    return {
        "engine": engine.engine,
        "condition": statistics.condition.value,
        "draining": statistics.draining,
        "restarts": statistics.restarts,
        "last_death": statistics.last_death,
        "stalled_seconds": statistics.stalled_seconds,
        "slots": value_of(engine.slots),
        **{figure.live: read(engine.now) for figure, read in _SHOWN.items() if figure.kind == "gauge"},
        "budget_bytes": value_of(engine.kv_budget),
        "weights_bytes": value_of(engine.weights_bytes),
    }


def _model_line(model: Model) -> dict[str, Any]:
    """Return what the page shows of a model beside the others."""
    now = model.scheduler.operations.statistics()
    return {
        "model": model.name,
        "condition": model.condition,
        "waits_for": model.waits_for,
        "queued": now.queued,
        "in_engine": now.in_engine,
        "held_bytes": sum(
            value_of(engine.weights_bytes) + engine.now.kv_bytes + engine.now.cache.kept_bytes
            for engine in model.scheduler.metrics.engines
        ),
    }


def _tenants(flows: Iterable[FlowStatistics]) -> list[dict[str, Any]]:
    """Return the tenants with the longest queues; the page has room for a few."""
    requests, sessions = Counter[str](), Counter[str]()
    oldest, service = defaultdict[str, float](float), dict[str, float]()
    for flow in flows:
        requests[flow.tenant] += flow.requests
        sessions[flow.tenant] += 1
        oldest[flow.tenant] = max(oldest[flow.tenant], flow.oldest_seconds)
        service[flow.tenant] = flow.tenant_service_tokens
    return [
        {
            "tenant": tenant,
            "requests": count,
            "sessions": sessions[tenant],
            "oldest_seconds": oldest[tenant],
            "service_tokens": service[tenant],
        }
        for tenant, count in requests.most_common(TENANTS_SHOWN)
    ]
