"""`/metrics`, in Prometheus' text format, with the counts of HTTP's answers by route template and status.

Clients choose paths, the server chooses templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import trio
from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry, Counter, Metric, exposition
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.statistics import ServerStatistics
from api.served_models import ServedModels
from scheduler.telemetry.instruments import OpenFamily, value_of
from scheduler.telemetry.labels import METHODS, OTHER
from scheduler.telemetry.metrics import Metrics

_CLIENT_LEFT = "499"


class HttpMetrics:
    """ASGI middleware, outside of authentication, so that refusals count too."""

    def __init__(self, app: ASGIApp, requests: OpenFamily[Counter]) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = _CLIENT_LEFT

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            # An exception before the head becomes the server's own 500; afterwards the status is already
            # sent.
            status = "500" if status == _CLIENT_LEFT else status
            raise
        finally:
            # The router sets the route; a request that never reached it has none.
            method = scope["method"] if scope["method"] in METHODS else OTHER
            route = getattr(scope.get("route"), "path", OTHER)
            self._requests.labels(method, route, status).inc()


def _observe(metrics: Metrics, now: ServerStatistics) -> None:
    """Bring the server's own counts up to date."""
    metrics.http_connections.set(now.open_connections)
    metrics.accept_failures.inc(now.accept_failures_total - value_of(metrics.accept_failures))
    for refusal, total in now.refusals_total.items():
        counter = metrics.http_refusals[refusal.code]
        counter.inc(total - value_of(counter))


def metrics_routes(models: ServedModels, server: Callable[[], ServerStatistics] | None) -> APIRouter:
    """Return the routes. `server` provides the counts of the API's server, if there is one."""
    router = APIRouter(tags=["operations"])
    metrics_of_server = models.fleet.first.scheduler.metrics.server

    @router.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Serve Prometheus text format."""
        for model in models.fleet:
            model.scheduler.operations.observe()
        if server is not None:
            _observe(metrics_of_server, server())
        text = await exposition_of(metrics_of_server.registry)
        return Response(text, headers={"content-type": exposition.CONTENT_TYPE_PLAIN_0_0_4})

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
