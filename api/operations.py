"""What operators and load balancers ask: alive, ready, metrics, and what the scheduler is doing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from scheduler.service import Scheduler


async def everybody(request: Request) -> None:
    """No keys are configured: whoever can reach the server may ask."""


def operations_routes(
    scheduler: Scheduler, stall_seconds: float, admin: Callable[[Request], Awaitable[None]] = everybody
) -> APIRouter:
    """`admin` raises for who may not see what concerns others: tenants, sessions, request ids."""
    router = APIRouter(tags=["operations"])

    @router.get("/health")
    async def health() -> JSONResponse:
        """Alive and progressing: 503 when the engine has work and has made no step for too long."""
        statistics = scheduler.statistics()
        progressing = statistics.stalled_seconds < stall_seconds
        body: dict[str, Any] = {
            "status": "ok" if progressing else "stalled",
            "stalled_seconds": round(statistics.stalled_seconds, 3),
            "queued": statistics.queued,
            "in_engine": statistics.in_engine,
        }
        return JSONResponse(body, status_code=200 if progressing else 503)

    @router.get("/ready")
    async def ready() -> JSONResponse:
        """Whether a request sent now would be taken: 503 while the engine loads or restarts, and
        while the server drains."""
        statistics = scheduler.statistics()
        engine = statistics.engine
        up = engine.ready is not None and not statistics.draining
        body: dict[str, Any] = {
            "status": "draining" if statistics.draining else engine.condition.value,
            "restarts": engine.restarts,
            "last_death": engine.last_death,
        }
        return JSONResponse(body, status_code=200 if up else 503, headers={} if up else {"retry-after": "1"})

    @router.get("/metrics")
    async def metrics() -> Response:
        """Prometheus text format."""
        scheduler.observe_queue()
        return Response(generate_latest(scheduler.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/v1/scheduler", dependencies=[Depends(admin)])
    async def report() -> dict[str, Any]:
        """Who waits by tenant and session, who runs, the bounds, and how fast requests leave."""
        rounded: dict[str, Any] = _rounded(asdict(scheduler.report()))
        return rounded

    return router


def _rounded(value: Any) -> Any:
    """Seconds and tokens to the thousandth: more is noise to a reader."""
    match value:
        case float():
            return round(value, 3)
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list() | tuple():
            return [_rounded(item) for item in value]
        case _:
            return value
