"""A registry as a server's, with every family that it may export."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from scheduler.telemetry.labels import MODEL_FACTS
from scheduler.telemetry.metrics import Metrics


def registry(*engines: str) -> CollectorRegistry:
    metrics = Metrics(["acme"])
    model = metrics.of_model("tiny")
    metrics.describe_build({"version": "1", "python": "3", "mlx": "0"})
    metrics.http_requests.labels("GET", "/health", "200").inc()
    metrics.bodies_with_ignored_fields.labels("/v1/messages").inc()
    for engine in engines:
        model.of_engine(engine).describe_model(dict.fromkeys(MODEL_FACTS, "x"))
    return metrics.registry
