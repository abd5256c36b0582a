"""`GET /`: the live page, and `/live`: the stream of snapshots that feeds it.

The page is one file that sends requests only to this server. It contains no secret and needs no key; the
stream does.
"""

from __future__ import annotations

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

from api import sse
from api.auth import operator
from api.cache import cache_object
from api.engines import rounded
from api.served_models import ServedModels
from scheduler.errors import SchedulerError
from scheduler.fleet.fleet import Fleet
from scheduler.fleet.model import Model
from scheduler.link.messages import Inspection
from scheduler.service import Scheduler
from scheduler.statistics import FlowStatistics, MemberStatistics
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.readings import buckets_of, value_of

PAGE = Path(__file__).with_name("live.html").read_text("utf-8")
SNAPSHOT_SECONDS = 0.5
CACHE_SECONDS = 3.0
"""An inspection of the cache costs the engine a turn."""
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

    @router.get("/live", dependencies=[Depends(operator)], response_model=None)
    async def live(model: str | None = None) -> Response:
        """Stream server-sent events of a model, or of the first one: `snapshot` twice a second, `cache` every
        few. `history` of the first snapshot has the last five minutes, of each other the samples since."""
        return LiveStream(models.fleet, models.model(model))

    return router


class LiveStream(Response):
    """Streams what `model` does until the reader leaves, a draining server has no more requests, or another
    process takes them: the page connects again."""

    def __init__(self, fleet: Fleet, model: Model) -> None:
        super().__init__(headers=sse.HEADERS)
        del self.headers["content-length"]
        self._fleet = fleet
        self._scheduler = model.scheduler
        self._model = model
        self._inspection: Inspection | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with trio.open_nursery() as nursery:
            # In a task of its own: a hung engine does not answer, and then the snapshots matter most.
            nursery.start_soon(self._inspect_forever)
            await self._send_snapshots(send)
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_snapshots(self, send: Send) -> None:
        seen = sampled = 0
        history = self._scheduler.history
        while not self._over():
            recent = self._scheduler.recent.since(seen)
            seen = recent[-1].number if recent else seen
            body = {**snapshot(self._scheduler), "model": self._model.name}
            body["models"] = [_model_line(model) for model in self._fleet]
            body["recent"] = rounded([asdict(one) for one in recent])
            body["history"] = rounded(history.since(sampled))
            sampled = history.number
            frame = sse.named(b"snapshot", _encoder.encode(body))
            if (inspection := self._inspection) is not None:
                self._inspection = None
                frame += sse.named(b"cache", _encoder.encode(cache_object(inspection)))
            await send({"type": "http.response.body", "body": frame, "more_body": True})
            await trio.sleep(SNAPSHOT_SECONDS)

    def _over(self) -> bool:
        if self._fleet.retiring:
            return True
        each = [model.scheduler.operations.statistics() for model in self._fleet]
        return all(now.draining and not now.queued and not now.in_engine for now in each)

    async def _inspect_forever(self) -> None:
        while True:
            # No engine, or one that does not answer: the snapshots show it.
            with suppress(SchedulerError):
                self._inspection = await self._scheduler.operations.inspect_cache(top=12)
            await trio.sleep(CACHE_SECONDS)


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """Return a model's current state for the page: of all its engines together, and of each. Buckets are
    totals by upper edge; the page computes differences."""
    operations, metrics = scheduler.operations, scheduler.metrics
    statistics, report = operations.statistics(), operations.report()
    queue = asdict(report.queue)
    queue["tenants"] = _tenants(report.queue.flows)
    del queue["flows"]
    engines = [_engine_line(metrics.of_engine(engine.engine), engine) for engine in report.engines]
    body = {
        "time": trio.current_time(),
        "engine": {
            "condition": statistics.engine.condition.value,
            "restarts": statistics.engine.restarts,
            "last_death": statistics.engine.last_death,
            "stalled_seconds": statistics.stalled_seconds,
            "draining": statistics.draining,
            "blocked": statistics.blocked,
        },
        "engines": engines,
        "slots": sum(line["slots"] for line in engines),
        "queue": queue,
        "running": [asdict(one) for one in report.running],
        "waits": [asdict(one) for one in report.waits[:TENANTS_SHOWN]],
        "generated_tokens": sum(value_of(engine.generated_tokens) for engine in metrics.engines),
        "prefilled_tokens": sum(value_of(engine.prefilled_tokens) for engine in metrics.engines),
        "cached_tokens": sum(value_of(engine.prefix_hit_tokens) for engine in metrics.engines),
        "memory": {name: sum(line[name] for line in engines) for name in _MEMORY},
    }
    histograms = {
        name: list(buckets_of(*series)[0].items())
        for name, series in (("ttft", metrics.ttft.values()), ("itl", [metrics.itl]))
    }
    result: dict[str, Any] = rounded(body) | histograms
    return result


_MEMORY = ("running_bytes", "prefix_bytes", "budget_bytes", "weights_bytes")


def _engine_line(engine: EngineMetrics, statistics: MemberStatistics) -> dict[str, Any]:
    """Return what the page shows of one engine."""
    return {
        "engine": engine.engine,
        "condition": statistics.condition.value,
        "draining": statistics.draining,
        "quarantined": statistics.quarantined,
        "restarts": statistics.restarts,
        "last_death": statistics.last_death,
        "stalled_seconds": statistics.stalled_seconds,
        "slots": value_of(engine.slots),
        "running_slots": value_of(engine.running),
        "waiting_requests": value_of(engine.waiting),
        "running_bytes": value_of(engine.kv_bytes),
        "prefix_bytes": value_of(engine.prefix_bytes),
        "budget_bytes": value_of(engine.kv_budget),
        "weights_bytes": value_of(engine.weights_bytes),
    }


def _model_line(model: Model) -> dict[str, Any]:
    """Return what the page shows of a model beside the others."""
    now = model.scheduler.operations.statistics()
    return {
        "model": model.name,
        "condition": model.condition,
        "queued": now.queued,
        "in_engine": now.in_engine,
        "held_bytes": sum(
            value_of(part)
            for engine in model.scheduler.metrics.engines
            for part in (engine.weights_bytes, engine.kv_bytes, engine.prefix_bytes)
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
