"""`/metrics`, on the API's port or, with `--metrics-port`, on a port of its own.

An operator who sets a port wants to hide metrics from the API's clients, so the API's port then does not
serve them. Both ports serve the probes: monitoring should not have to pass the API's authentication.
"""

from __future__ import annotations

from collections.abc import Iterator

import trio
from fastapi import APIRouter, FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.registry import Collector
from starlette.types import Scope

from api.access.allowed_hosts import AllowedHosts
from api.access.auth import is_open
from api.access.request_origin import OriginCheck
from api.admin.http_metrics import HttpMetrics, ServerMetrics
from api.admin.operations import probe_routes
from api.answers.errors import ApiError
from api.http.request_id import RequestIds
from api.served_models import ServedModels


def metrics_routes(models: ServedModels, server: ServerMetrics | None) -> APIRouter:
    """Return the routes. `server` provides the counts of the API's server, if there is one."""
    router = APIRouter(tags=["operations"])
    registry = models.fleet.first.scheduler.metrics.registry

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Serve Prometheus text format."""
        for model in models.fleet:
            model.scheduler.operations.observe()
        if server is not None:
            server.observe()
        return Response(
            await exposition_of(registry), headers={"content-type": exposition.CONTENT_TYPE_PLAIN_0_0_4}
        )

    return router


def make_metrics_app(
    models: ServedModels,
    stall_seconds: float,
    hosts: AllowedHosts,
    server: ServerMetrics | None = None,
    *,
    has_keys: bool = False,
) -> FastAPI:
    """Make the application for `--metrics-port`: metrics and probes, without keys, as on the API's port."""
    app = FastAPI(title="Penstock metrics", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.has_keys = has_keys
    app.include_router(metrics_routes(models, server))
    app.include_router(probe_routes(models, stall_seconds))
    app.add_middleware(OriginCheck, hosts=hosts, allowed_origins=(), is_open=is_open, answer=_error_response)
    app.add_middleware(HttpMetrics, requests=models.fleet.first.scheduler.metrics.server.http_requests)
    app.add_middleware(RequestIds)
    return app


def _error_response(_: Scope, error: ApiError) -> JSONResponse:
    return JSONResponse(error.openai_body(), status_code=error.status)


async def exposition_of(registry: CollectorRegistry) -> bytes:
    """Return the metrics' text. Let streams continue after each family: writing the series of many models
    takes milliseconds."""
    written = []
    for family in registry.collect():
        written.append(exposition.generate_latest(_Family(family)))
        await trio.lowlevel.checkpoint()
    return b"".join(written)


class _Family(Collector):
    """Stands for a registry with one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
