"""Endpoints for operators and load balancers: health, readiness, the scheduler, and models to load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeAlias

import msgspec
import trio
from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import JSONResponse

from api.access.auth import operator, trusted
from api.served_models import ServedModels
from scheduler.fleet.model import Model
from scheduler.fleet.residency import ModelState
from scheduler.statistics import EngineStatistics, SchedulerReport, SchedulerStatistics

ModelName = Annotated[str | None, Query()]
"""One of several models; the first if it is not given."""
_INLINE_ENTRIES = 32
"""Reports up to this size are encoded where they are taken: a thread would cost more."""


def probe_routes(models: ServedModels, stall_seconds: float) -> APIRouter:
    """Return the routes for load balancers and supervisors."""
    router = APIRouter(tags=["operations"])

    @router.head("/health", include_in_schema=False)
    @router.get("/health")
    async def health() -> JSONResponse:
        """Return whether the server lives and progresses. 503 if the engines of every model that has work
        have finished no step for too long."""
        each = [model.scheduler.operations.statistics() for model, _ in models]
        stalled_seconds = min((one.stalled_seconds for one in each if one.in_engine), default=0.0)
        progressing = stalled_seconds < stall_seconds
        body: dict[str, Any] = {
            "status": "ok" if progressing else "stalled",
            "stalled_seconds": round(stalled_seconds, 3),
            "queued": sum(one.queued for one in each),
            "in_engine": sum(one.in_engine for one in each),
        }
        return JSONResponse(body, status_code=200 if progressing else 503)

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready(is_trusted: Annotated[bool, Depends(trusted)]) -> JSONResponse:
        """Return whether a request sent now would be accepted. 503 while the engine loads or restarts, while
        a crash loop blocks admission (`reason`), and while the server drains. In a quarantine (`status`) it
        would be accepted, and wait for what `reason` says. Of several models one is enough, and a model that
        is unloaded is loaded by its next request. If the server has keys, only requests with a key get
        `last_death` and `reason`, which quote the engine's errors."""
        model, statistics = _readiest(models)
        engine = statistics.engine
        up = _accepts(model, statistics)
        body: dict[str, Any] = {
            "status": _status(statistics),
            "restarts": engine.restarts,
            "last_death": engine.last_death if is_trusted else None,
            "reason": (statistics.blocked or statistics.clearing) if is_trusted else None,
        }
        wait = str(max(1, math.ceil(statistics.blocked_seconds)))
        return JSONResponse(body, status_code=200 if up else 503, headers={} if up else {"retry-after": wait})

    return router


def _readiest(models: ServedModels) -> tuple[Model, SchedulerStatistics]:
    """Return the first model that accepts requests, or the first one."""
    each = [(model, model.scheduler.operations.statistics()) for model, _ in models]
    return next((one for one in each if _accepts(*one)), each[0])


def _accepts(model: Model, statistics: SchedulerStatistics) -> bool:
    if statistics.draining or statistics.blocked is not None:
        return False
    loadable = (ModelState.UNLOADED, ModelState.UNLOADING, ModelState.DRAINING)
    return statistics.engine.ready is not None or model.state in loadable


def operations_routes(models: ServedModels, reports: Mapping[str, Callable[[], dict[str, Any]]]) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/v1/scheduler", dependencies=[Depends(operator)])
    async def report() -> Response:
        """Return who waits and runs, the bounds, and the state of each engine. The queue is listed by tenant
        and session, beside the rate of finished requests and the last cause of death; each engine has its
        measured speeds. Of several models that is the first; `models` has each by its name. With engines on
        other machines `cluster` lists them, and whether new ones can be started."""
        each = {model.name: model.scheduler.operations for model, _ in models}
        taken = {name: (one.report(), one.statistics().engine) for name, one in each.items()}
        more = {name: report() for name, report in reports.items()}
        entries = (len((*one.queue.flows, *one.running, *one.waits)) for one, _ in taken.values())
        if sum(entries) <= _INLINE_ENTRIES:
            content = _encoded(taken, more)
        else:
            content = await trio.to_thread.run_sync(_encoded, taken, more)
        return Response(content, media_type="application/json")

    @router.get("/v1/scheduler/requests/{request_id}", dependencies=[Depends(operator)])
    async def request(request_id: str, model: ModelName = None) -> dict[str, Any]:
        """Return what happened to a request of a model, by the id of its answer. Each of its choices has
        spans of seconds, from its arrival on. It may wait, run, or be among the last 64 that ended. No
        text of it is kept."""
        named = models.model(model)
        reports = named.scheduler.operations.request_reports(request_id)
        choices = [rounded(asdict(report)) for report in reports]
        return {"id": request_id, "model": named.name, "choices": choices}

    @router.delete("/v1/scheduler/requests/{request_id}", dependencies=[Depends(operator)])
    async def end(request_id: str, model: ModelName = None) -> dict[str, Any]:
        """End a request of any tenant that waits or runs, by the id of its answer. Its client gets an
        error with the code `ended_by_operator`."""
        named = models.model(model)
        choices = named.scheduler.operations.end_request(request_id)
        return {"id": request_id, "model": named.name, "ended": choices}

    return router


def loading_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], dependencies=[Depends(operator)])

    # `:path`, because hub ids contain a slash.
    @router.post("/v1/models/{name:path}/load", status_code=202)
    async def load(name: str) -> JSONResponse:
        """Load a model now, if there is memory for it, or as soon as there is."""
        models.fleet.load(models.model(name).name, trio.current_time())
        return JSONResponse(models.listing(name), status_code=202)

    @router.post("/v1/models/{name:path}/unload", status_code=202)
    async def unload(name: str) -> JSONResponse:
        """Unload a model when the requests that run are over; a load that is under way ends at once. The next
        request for it, or one that waits for it, loads it again."""
        models.fleet.unload(models.model(name).name)
        return JSONResponse(models.listing(name), status_code=202)

    return router


_Taken: TypeAlias = tuple[SchedulerReport, EngineStatistics]
"""One model's scheduler at a moment."""


def _encoded(taken: Mapping[str, _Taken], more: Mapping[str, Any]) -> bytes:
    bodies = {name: _scheduler_object(*one) for name, one in taken.items()}
    first, *others = bodies.values()
    return msgspec.json.encode({**first, **({"models": bodies} if others else {}), **more})


def _scheduler_object(report: SchedulerReport, engine: EngineStatistics) -> dict[str, Any]:
    body: dict[str, Any] = rounded(asdict(report))
    body["restarts"], body["last_death"] = engine.restarts, engine.last_death
    body["last_death_cause"] = engine.death_cause
    return body


def _status(statistics: SchedulerStatistics) -> str:
    if statistics.draining:
        return "draining"
    ready = statistics.engine.ready is not None
    return "unstable" if ready and statistics.blocked is not None else statistics.engine.condition.value


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
