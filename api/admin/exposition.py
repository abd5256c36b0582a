"""`/metrics`, in Prometheus' text format or OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Metric, exposition
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from api.admin.http_metrics import ServerMetrics
from api.served_models import ServedModels

_END = b"# EOF\n"
"""OpenMetrics' last line."""


def metrics_routes(models: ServedModels, server: ServerMetrics | None) -> APIRouter:
    """Return the routes. `server` provides the counts of the API's server, if there is one."""
    router = APIRouter(tags=["operations"])
    registry = models.fleet.first.scheduler.metrics.registry

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Serve Prometheus text format, or OpenMetrics with exemplars to scrapers that accept it."""
        for model in models.fleet:
            model.scheduler.operations.observe()
        if server is not None:
            server.observe()
        body, content_type = await exposition_of(registry, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    return router


async def exposition_of(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the metrics' text and content type. Let streams continue after each family: writing the series
    of many models takes milliseconds."""
    modern = "application/openmetrics-text" in accept
    written = []
    for family in registry.collect():
        written.append(_of_family(family, modern))
        await trio.lowlevel.checkpoint()
    if modern:
        return b"".join((*written, _END)), openmetrics.CONTENT_TYPE_LATEST
    return b"".join(written), exposition.CONTENT_TYPE_PLAIN_0_0_4


class _Family(Collector):
    """Stands for a registry with one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def _of_family(family: Metric, modern: bool) -> bytes:
    """Return the family's text, with colons: the library's default writes vllm_ for vllm:, although a colon
    needs no escape."""
    if modern:
        text: bytes = openmetrics.generate_latest(_Family(family), escaping=openmetrics.ALLOWUTF8)
        return text.removesuffix(_END)
    return exposition.generate_latest(_Family(family))
