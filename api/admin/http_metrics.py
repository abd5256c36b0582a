"""Count HTTP answers by route template and status. Clients choose paths, the server chooses templates."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.statistics import ServerStatistics
from scheduler.telemetry.instruments import OpenFamily
from scheduler.telemetry.labels import METHODS, OTHER
from scheduler.telemetry.metrics import Metrics

_CLIENT_LEFT = "499"


class HttpMetrics:
    """ASGI middleware, outside of authentication, so that refusals count too."""

    def __init__(self, app: ASGIApp, requests: OpenFamily[Counter]) -> None:
        self._app = app
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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


class ServerMetrics:
    """Exports the server's own counts as metrics, updated at each scrape."""

    def __init__(self, metrics: Metrics, statistics: Callable[[], ServerStatistics]) -> None:
        self._metrics = metrics
        self._statistics = statistics
        self._seen: ServerStatistics | None = None

    def observe(self) -> None:
        now, seen = self._statistics(), self._seen
        self._seen = now
        self._metrics.http_connections.set(now.open_connections)
        self._metrics.accept_failures.inc(
            now.accept_failures_total - (0 if seen is None else seen.accept_failures_total)
        )
        for refusal, total in now.refusals_total.items():
            before = 0 if seen is None else seen.refusals_total[refusal]
            self._metrics.http_refusals[refusal.value].inc(total - before)
