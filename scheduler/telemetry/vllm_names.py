"""`--metrics-compat vllm`: the core `vllm:*` series, made from our own at each scrape.

Names and labels are vLLM 0.33.0's, so that dashboards made for it, gateway scorers and `server.type: vllm`
work unchanged. They are aliases: a query uses one family or the other, never both.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.telemetry.metrics import Metrics
from scheduler.telemetry.readings import buckets_of, value_of

_LABELS = ("model_name", "engine")
_REASONS = {
    "stop": ("stop", "tool_calls"),
    "length": ("length",),
    "abort": ("cancelled", "deadline"),
    "error": ("error",),
}
"""vLLM's finished_reason from our outcomes; vLLM does not count rejected requests."""


class VllmNames(Collector):
    """Reads the instruments at each scrape; keeps nothing."""

    def __init__(self, metrics: Metrics, model_name: str) -> None:
        self._metrics = metrics
        self._labels = [model_name, "0"]

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield self._gauge("num_requests_running", value_of(metrics.running))
        # To a router, waiting in the queue and waiting for a slot in the engine are the same.
        yield self._gauge("num_requests_waiting", value_of(metrics.queued) + value_of(metrics.engine_waiting))
        budget = value_of(metrics.kv_budget)
        yield self._gauge("kv_cache_usage_perc", value_of(metrics.kv_bytes) / budget if budget else 0.0)
        for name, counter in (
            ("prefix_cache_queries", metrics.prefix_query_tokens),
            ("prefix_cache_hits", metrics.prefix_hit_tokens),
            ("num_preemptions", metrics.preemptions),
            ("prompt_tokens", metrics.prompt_tokens),
            ("prompt_tokens_cached", metrics.prefix_hit_tokens),
            ("generation_tokens", metrics.generated_tokens),
        ):
            yield self._counter(name, value_of(counter))
        yield self._by("prompt_tokens_by_source", "source", self._sources())
        yield self._by("request_success", "finished_reason", self._finished())
        for name, histogram in (
            ("time_to_first_token_seconds", metrics.ttft),
            ("inter_token_latency_seconds", metrics.itl),
            ("request_time_per_output_token_seconds", metrics.tpot),
            ("e2e_request_latency_seconds", metrics.e2e),
            ("request_queue_time_seconds", metrics.queue_seconds),
            ("request_prefill_time_seconds", metrics.prefill_seconds),
            ("request_decode_time_seconds", metrics.decode_seconds),
            ("request_prompt_tokens", metrics.request_prompt_tokens),
            ("request_generation_tokens", metrics.request_output_tokens),
        ):
            yield self._histogram(name, histogram)

    def _sources(self) -> dict[str, float]:
        return {
            "local_compute": value_of(self._metrics.prefilled_tokens),
            "local_cache_hit": value_of(self._metrics.prefix_hit_tokens),
            "external_kv_transfer": 0.0,
        }

    def _finished(self) -> dict[str, float]:
        ours = {
            sample.labels["outcome"]: sample.value
            for family in self._metrics.requests.collect()
            for sample in family.samples
        }
        return {reason: sum(ours[one] for one in outcomes) for reason, outcomes in _REASONS.items()}

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", f"As vLLM's {name}.", labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", f"As vLLM's {name}.", labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _by(self, name: str, label: str, values: dict[str, float]) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", f"As vLLM's {name}.", labels=(*_LABELS, label))
        for value, count in values.items():
            family.add_metric([*self._labels, value], count)
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        """Summed over our labels: vLLM's series have only the model's."""
        counts, total = buckets_of(histogram)
        theirs = HistogramMetricFamily(f"vllm:{name}", f"As vLLM's {name}.", labels=_LABELS)
        theirs.add_metric(self._labels, list(counts.items()), total)
        return theirs
