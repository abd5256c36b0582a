"""Endpoints for operators and load balancers: health, readiness, the cache and the scheduler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from api.auth import operator, trusted
from api.engines import engine_objects, rounded
from scheduler.link.messages import Inspection
from scheduler.pool.together import together
from scheduler.service import Scheduler
from scheduler.statistics import SchedulerStatistics


def probe_routes(scheduler: Scheduler, stall_seconds: float) -> APIRouter:
    """Return the routes for load balancers and supervisors."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> JSONResponse:
        """Alive and progressing: 503 if the engine has work and has finished no step for too long."""
        statistics = scheduler.operations.statistics()
        progressing = statistics.stalled_seconds < stall_seconds
        body: dict[str, Any] = {
            "status": "ok" if progressing else "stalled",
            "stalled_seconds": round(statistics.stalled_seconds, 3),
            "queued": statistics.queued,
            "in_engine": statistics.in_engine,
        }
        return JSONResponse(body, status_code=200 if progressing else 503)

    @router.get("/ready")
    async def ready(is_trusted: Annotated[bool, Depends(trusted)]) -> JSONResponse:
        """Whether a request sent now would be accepted: 503 while the engine loads or restarts, while a crash
        loop blocks admission (`reason`), and while the server drains. If the server has keys, only requests
        with a key get `last_death` and `reason`, which quote the engine's errors."""
        statistics = scheduler.operations.statistics()
        engine = statistics.engine
        blocked = statistics.blocked
        up = engine.ready is not None and not statistics.draining and blocked is None
        body: dict[str, Any] = {
            "status": _status(statistics),
            "restarts": engine.restarts,
            "last_death": engine.last_death if is_trusted else None,
            "reason": blocked if is_trusted else None,
        }
        wait = str(max(1, math.ceil(statistics.blocked_seconds)))
        return JSONResponse(body, status_code=200 if up else 503, headers={} if up else {"retry-after": wait})

    return router


def operations_routes(scheduler: Scheduler) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/v1/cache", dependencies=[Depends(operator)])
    async def cache(
        top: Annotated[int, Query(ge=0, le=1000)] = 10,
        text_tokens: Annotated[int, Query(ge=0, le=4096)] = 0,
    ) -> JSONResponse:
        """The contents of the prefix caches, all engines together and, if there are several, each by its name
        in `engines`. `text_tokens`: how many tokens of each shared prefix to return as text; the text is part
        of clients' prompts."""
        found = await scheduler.operations.inspect_engines(top=top, head_tokens=text_tokens)
        inspection = together(found.values(), top)
        prefixes = inspection.cache.trunks if inspection.cache and text_tokens else ()
        texts = [await scheduler.detokenize(prefix.head, "text_tokens") for prefix in prefixes]
        body = cache_object(inspection, texts)
        if len(scheduler.pool.names) > 1:
            body["engines"] = {name: cache_object(one) for name, one in found.items()}
        return JSONResponse(body)

    @router.delete("/v1/cache", dependencies=[Depends(operator)])
    async def clear_cache() -> JSONResponse:
        """Evict every prefix that no running request uses, in all engines."""
        inspection = await scheduler.operations.inspect_cache(clear=True)
        return JSONResponse({"freed_bytes": inspection.freed_bytes, **cache_object(inspection)})

    @router.get("/v1/scheduler", dependencies=[Depends(operator)])
    async def report() -> dict[str, Any]:
        """The queue by tenant and session, the requests in the engines, the bounds, the rate of finished
        requests and the last cause of death; and of each engine its state, its slots, its measured speeds and
        the plan of its last step (`report`; null if it does not answer). `engine` is the first one's
        report."""
        body: dict[str, Any] = rounded(asdict(scheduler.operations.report()))
        life = scheduler.operations.statistics().engine
        body["restarts"], body["last_death"] = life.restarts, life.last_death
        body["last_death_cause"] = life.death_cause
        body["engines"] = await engine_objects(scheduler)
        body["engine"] = body["engines"][0]["report"]
        return body

    return router


def _status(statistics: SchedulerStatistics) -> str:
    if statistics.draining:
        return "draining"
    ready = statistics.engine.ready is not None
    return "unstable" if ready and statistics.blocked is not None else statistics.engine.condition.value


def cache_object(inspection: Inspection, texts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the cache report. `texts` are the first tokens of each shared prefix as text, if requested."""
    report = inspection.cache
    if report is None:
        return {"enabled": False}
    prefixes: list[dict[str, Any]] = [
        {"tokens": prefix.tokens, "references": prefix.references, "hits": prefix.hits}
        for prefix in report.trunks
    ]
    for prefix, text in zip(prefixes, texts, strict=False):
        prefix["text"] = text
    plain = {name: getattr(report, name) for name in report.__struct_fields__ if name != "trunks"}
    disk = None if inspection.disk is None else msgspec.structs.asdict(inspection.disk)
    return {"enabled": True, **plain, "trunks": prefixes, "disk": disk}
