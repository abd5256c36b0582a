"""A registry as a server's, with every family that it may export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from scheduler.telemetry.labels import MODEL_FACTS
from scheduler.telemetry.metrics import Metrics


def registry(*engines: str) -> CollectorRegistry:
    """Return the registry of a server whose only model has these engines."""
    return registry_of({"tiny": engines})


def registry_of(engines: Mapping[str, Sequence[str]]) -> CollectorRegistry:
    """`engines`: by model."""
    metrics = Metrics(["acme"])
    metrics.describe_build({"version": "1", "python": "3", "mlx": "0"})
    metrics.http_requests.labels("GET", "/health", "200").inc()
    metrics.bodies_with_ignored_fields.labels("/v1/messages").inc()
    for model, names in engines.items():
        metrics.of_model(model).malformed_calls.labels("json_tools", "no_call").inc()
        for name in names:
            metrics.of_model(model).of_engine(name).describe_model(dict.fromkeys(MODEL_FACTS, "x"))
    return metrics.registry
