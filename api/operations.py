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
from scheduler.errors import Unavailable
from scheduler.link.messages import Inspection
from scheduler.link.reports import EngineReport
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
        """The contents of the prefix cache. `text_tokens`: how many tokens of each shared prefix to return as
        text; the text is part of clients' prompts."""
        inspection = await scheduler.operations.inspect_cache(top=top, head_tokens=text_tokens)
        prefixes = inspection.cache.trunks if inspection.cache and text_tokens else ()
        texts = [await scheduler.detokenize(prefix.head, "text_tokens") for prefix in prefixes]
        return JSONResponse(cache_object(inspection, texts))

    @router.delete("/v1/cache", dependencies=[Depends(operator)])
    async def clear_cache() -> JSONResponse:
        """Evict every prefix that no running request uses."""
        inspection = await scheduler.operations.inspect_cache(clear=True)
        return JSONResponse({"freed_bytes": inspection.freed_bytes, **cache_object(inspection)})

    @router.get("/v1/scheduler", dependencies=[Depends(operator)])
    async def report() -> dict[str, Any]:
        """The queue by tenant and session, the requests in the engine, the bounds, the rate of finished
        requests and the last engine's cause of death; and of the engine, its slots, its measured speeds and
        the plan of its last step (null if it does not answer)."""
        body: dict[str, Any] = rounded(asdict(scheduler.operations.report()))
        life = scheduler.operations.statistics().engine
        body["restarts"], body["last_death"] = life.restarts, life.last_death
        body["last_death_cause"] = life.death_cause
        try:
            engine = (await scheduler.operations.inspect_cache(top=0)).engine
        except Unavailable:
            engine = None
        body["engine"] = None if engine is None else rounded(_engine_object(engine))
        return body

    return router


def _engine_object(engine: EngineReport) -> dict[str, Any]:
    """Add field names, which messages on the link do not carry."""
    fields = msgspec.structs.asdict(engine)
    slots = [msgspec.structs.asdict(slot) for slot in engine.slots]
    plan = None if engine.plan is None else msgspec.structs.asdict(engine.plan)
    return fields | {"slots": slots, "plan": plan}


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


def rounded(value: Any) -> Any:
    """Round floats to the thousandth, or below 1 to three digits (a step may take less than a
    millisecond)."""
    match value:
        case float():
            return round(value, 3) if abs(value) >= 1 else float(f"{value:.3g}")
        case dict():
            return {key: rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [rounded(item) for item in value]
        case _:
            return value
