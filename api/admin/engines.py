"""Endpoints for operators: list engines, add and drain one; load and unload a model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import msgspec
import trio
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from api.access.auth import operator
from api.served_models import ServedModels
from scheduler.engines.engine import Engine
from scheduler.errors import TooManyEngines, Unavailable
from scheduler.service import Scheduler
from scheduler.shared.messages import Inspection
from scheduler.shared.reports import EngineReport
from scheduler.statistics import MemberStatistics

ModelName = Annotated[str | None, Query()]
"""One of several models; the first if it is not given."""


def engine_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], dependencies=[Depends(operator)])

    @router.get("/v1/engines")
    async def engines(model: ModelName = None) -> dict[str, Any]:
        """Each engine's state and speeds, of one model; `report` has its slots and the plan of its last step,
        null if it does not answer."""
        scheduler = models.model(model).scheduler
        found = await inspections(scheduler)
        each = [scheduler.operations.engine(engine) for engine in scheduler.pool]
        return {"engines": [engine_object(one, found.get(one.engine)) for one in each]}

    @router.post("/v1/engines", status_code=202)
    async def add(model: ModelName = None) -> JSONResponse:
        """Start one more engine of a model, as the others were started. It takes requests when it has loaded.
        409 at 64, and where several models share the memory."""
        if len(models.fleet) > 1:
            raise TooManyEngines("several models share the memory: name their engines in the file (--models)")
        scheduler = models.model(model).scheduler
        return JSONResponse(_state(scheduler, scheduler.pool.add()), status_code=202)

    @router.delete("/v1/engines/{name}", status_code=202)
    async def drain(name: str, model: ModelName = None) -> JSONResponse:
        """Give an engine no new requests, and stop it at the end of those that it has. 404 for an unknown
        name, 409 for the last engine."""
        scheduler = models.model(model).scheduler
        return JSONResponse(_state(scheduler, scheduler.pool.drain(name)), status_code=202)

    return router


def loading_routes(models: ServedModels) -> APIRouter:
    router = APIRouter(tags=["operations"], dependencies=[Depends(operator)])

    # `:path`, because hub ids contain a slash.
    @router.post("/v1/models/{name:path}/load", status_code=202)
    async def load(
        name: str, keep_seconds: Annotated[float | None, Query(allow_inf_nan=False)] = None
    ) -> JSONResponse:
        """Load a model now, if there is memory for it, or as soon as there is. `keep_seconds`: unload it
        after this time without a request, from now on; negative: never for that."""
        models.fleet.load(models.model(name).name, trio.current_time(), keep_seconds)
        return JSONResponse(models.listing(name), status_code=202)

    @router.post("/v1/models/{name:path}/unload", status_code=202)
    async def unload(name: str) -> JSONResponse:
        """Unload a model when the requests that run are over; a load that is under way ends at once. The next
        request for it, or one that waits for it, loads it again."""
        models.fleet.unload(models.model(name).name)
        return JSONResponse(models.listing(name), status_code=202)

    return router


async def inspections(scheduler: Scheduler) -> dict[str, Inspection]:
    """Return what each engine reports of itself, by its name; those that do not answer are left out."""
    with suppress(Unavailable):
        return await scheduler.operations.inspect_engines(top=0)
    return {}


def engine_object(statistics: MemberStatistics, inspection: Inspection | None) -> dict[str, Any]:
    """Return one engine as clients read it."""
    report = None if inspection is None or inspection.engine is None else _report(inspection.engine)
    body: dict[str, Any] = rounded({**asdict(statistics), "report": report})
    return body


def _state(scheduler: Scheduler, engine: Engine) -> dict[str, Any]:
    state: dict[str, Any] = rounded(asdict(scheduler.operations.engine(engine)))
    return state


def _report(engine: EngineReport) -> dict[str, Any]:
    """Add field names, which messages on the link do not carry."""
    fields = msgspec.structs.asdict(engine)
    slots = [msgspec.structs.asdict(slot) for slot in engine.slots]
    plan = None if engine.plan is None else msgspec.structs.asdict(engine.plan)
    return fields | {"slots": slots, "plan": plan}


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
