"""Endpoints for operators and load balancers: health, readiness, the cache and the scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import JSONResponse

from api.auth import CallerOf, operator, trusted
from api.engines import ModelName, engine_objects, rounded
from api.json_route import BodyWorkOf, JsonRoute, Validated
from api.loading import keep_seconds
from api.openai.decode import generation_request
from api.openai.schema import ChatCompletionRequest
from api.served_models import ServedModels
from api.whole_answer import whole_answer
from scheduler.errors import InvalidRequest
from scheduler.fleet.model import Model
from scheduler.fleet.residency import ModelState
from scheduler.link.messages import Inspection
from scheduler.pool.together import together
from scheduler.request import PRIORITIES, Hold
from scheduler.service import Scheduler
from scheduler.statistics import SchedulerStatistics

MAX_HOLD_SECONDS = 7 * 86_400.0


def probe_routes(models: ServedModels, stall_seconds: float) -> APIRouter:
    """Return the routes for load balancers and supervisors."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> JSONResponse:
        """Alive and progressing: 503 if the engines of every model that has work have finished no step for
        too long."""
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

    @router.get("/ready")
    async def ready(is_trusted: Annotated[bool, Depends(trusted)]) -> JSONResponse:
        """Whether a request sent now would be accepted: 503 while the engine loads or restarts, while a crash
        loop blocks admission (`reason`), and while the server drains; of several models one is enough, and a
        model that is unloaded is loaded by its next request. If the server has keys, only requests with a key
        get `last_death` and `reason`, which quote the engine's errors."""
        model, statistics = _readiest(models)
        engine = statistics.engine
        up = _accepts(model, statistics)
        body: dict[str, Any] = {
            "status": _status(statistics),
            "restarts": engine.restarts,
            "last_death": engine.last_death if is_trusted else None,
            "reason": statistics.blocked if is_trusted else None,
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


def operations_routes(models: ServedModels, cluster: Callable[[], dict[str, Any]] | None = None) -> APIRouter:
    router = APIRouter(tags=["operations"], route_class=JsonRoute)

    @router.get("/v1/cache", dependencies=[Depends(operator)])
    async def cache(
        model: ModelName = None,
        top: Annotated[int, Query(ge=0, le=1000)] = 10,
        text_tokens: Annotated[int, Query(ge=0, le=4096)] = 0,
    ) -> JSONResponse:
        """The contents of a model's prefix caches, all engines together and, if there are several, each by
        its name in `engines`. `text_tokens`: how many tokens of each shared prefix to return as text; the
        text is part of clients' prompts."""
        scheduler = models.model(model).scheduler
        found = await scheduler.operations.inspect_engines(top=top, head_tokens=text_tokens)
        inspection = together(found.values(), top)
        prefixes = inspection.cache.trunks if inspection.cache and text_tokens else ()
        texts = [await scheduler.detokenize(prefix.head, "text_tokens") for prefix in prefixes]
        body = cache_object(inspection, texts)
        if len(scheduler.pool.names) > 1:
            body["engines"] = {name: cache_object(one) for name, one in found.items()}
        return JSONResponse(body)

    @router.post("/v1/cache", dependencies=[Depends(operator)])
    async def warm(
        body: Validated[ChatCompletionRequest],
        caller: CallerOf,
        work: BodyWorkOf,
        keep_alive: Annotated[str, Query()] = "5m",
    ) -> dict[str, Any]:
        """Prefill a chat's prompt at the lowest priority, and hold it for `keep_alive` ("10m", or seconds),
        as far as memory allows: `kept_bytes` and `refused_holds` of `GET /v1/cache` say so. Fields that are
        about the answer have no effect."""
        seconds = keep_seconds(keep_alive)
        if not 0 < seconds <= MAX_HOLD_SECONDS:
            raise InvalidRequest(
                f"keep_alive must be more than 0 and at most {MAX_HOLD_SECONDS:g} seconds", param="keep_alive"
            )
        served = models.check(body.model)
        decoded = await work.decode(body, lambda: generation_request(body, served.defaults))
        # The grammar, the choices and the like are the answer's, and there is none.
        asked = replace(decoded, max_tokens=0, min_tokens=0, choices=1, structure=None, top_logprobs=None)
        asked = replace(asked, priority=PRIORITIES.stop - 1, holds=(Hold(None, seconds),))
        answer = await whole_answer(served.scheduler, caller.asks(asked, served.adapter))
        return {
            "prompt_tokens": answer.usage.prompt_tokens,
            "cached_tokens": answer.usage.cached_tokens,
            "keep_seconds": seconds,
        }

    @router.delete("/v1/cache", dependencies=[Depends(operator)])
    async def clear_cache(model: ModelName = None) -> JSONResponse:
        """Evict every prefix of a model that no running request uses, in all its engines."""
        inspection = await models.model(model).scheduler.operations.inspect_cache(clear=True)
        return JSONResponse({"freed_bytes": inspection.freed_bytes, **cache_object(inspection)})

    @router.get("/v1/scheduler", dependencies=[Depends(operator)])
    async def report() -> dict[str, Any]:
        """The queue by tenant and session, the requests in the engines, the bounds, the rate of finished
        requests and the last cause of death; and of each engine its state, its slots, its measured speeds and
        the plan of its last step (`report`; null if it does not answer). `engine` is the first one's report.
        Of several models that is the first; `models` has each by its name. With engines on other machines
        `cluster` says which there are, and whether new ones can be started."""
        bodies = {model.name: await scheduler_object(model.scheduler) for model, _ in models}
        first, *others = bodies.values()
        body = {**first, "models": bodies} if others else first
        return body if cluster is None else {**body, "cluster": cluster()}

    @router.get("/v1/scheduler/requests/{request_id}", dependencies=[Depends(operator)])
    async def request(request_id: str, model: ModelName = None) -> dict[str, Any]:
        """What happened to a request of a model, by the id of its answer: each of its choices from its
        arrival on, in spans of seconds. It may wait, run, or be among the last 64 that ended. No text of it
        is kept."""
        named = models.model(model)
        stories = named.scheduler.operations.stories(request_id)
        choices = [rounded(asdict(story)) for story in stories]
        return {"id": request_id, "model": named.name, "choices": choices}

    return router


async def scheduler_object(scheduler: Scheduler) -> dict[str, Any]:
    """Return the report of one model's scheduler."""
    body: dict[str, Any] = rounded(asdict(scheduler.operations.report()))
    life = scheduler.operations.statistics().engine
    body["restarts"], body["last_death"] = life.restarts, life.last_death
    body["last_death_cause"] = life.death_cause
    body["engines"] = await engine_objects(scheduler)
    body["engine"] = body["engines"][0]["report"] if body["engines"] else None
    return body


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
