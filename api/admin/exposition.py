"""`/metrics`, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.registry import Collector

from api.admin.http_metrics import ServerMetrics
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
