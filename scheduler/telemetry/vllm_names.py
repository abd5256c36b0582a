"""`--metrics-compat vllm`: the core `vllm:*` series, made from our own at each scrape.

Names and labels are vLLM 0.33.0's, so that dashboards made for it, gateway scorers and `server.type: vllm`
work unchanged. They are aliases: a query uses one family or the other, never both. What one engine has is
labelled with its name; what belongs to the service (its queue, its requests) is labelled as engine 0's, once:
a sum over engines is right, and is what vLLM's series are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import Counter, Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.telemetry.metrics import EngineMetrics, Metrics
from scheduler.telemetry.readings import buckets_of, value_of

_LABELS = ("model_name", "engine")
_SERVICE = "0"
"""The engine of series that belong to no engine, whether or not an engine of this name is left."""
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
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield self._gauges("num_requests_running", lambda engine: value_of(engine.running))
        # To a router, waiting in the queue and waiting for a slot in an engine are the same.
        held = sum(value_of(engine.waiting) for engine in metrics.engines)
        waiting = GaugeMetricFamily(*_named("num_requests_waiting"), labels=_LABELS)
        waiting.add_metric(self._labels(), value_of(metrics.queued) + held)
        yield waiting
        yield self._gauges("kv_cache_usage_perc", _kv_usage)
        yield self._counters("prefix_cache_queries", lambda engine: engine.prefix_query_tokens)
        yield self._counters("prefix_cache_hits", lambda engine: engine.prefix_hit_tokens)
        yield self._counters("num_preemptions", lambda engine: engine.preemptions)
        prompts = CounterMetricFamily(*_named("prompt_tokens"), labels=_LABELS)
        prompts.add_metric(self._labels(), value_of(metrics.prompt_tokens))
        yield prompts
        yield self._counters("prompt_tokens_cached", lambda engine: engine.prefix_hit_tokens)
        yield self._counters("generation_tokens", lambda engine: engine.generated_tokens)
        yield self._sources()
        yield self._finished()
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

    def _sources(self) -> Metric:
        family = CounterMetricFamily(*_named("prompt_tokens_by_source"), labels=(*_LABELS, "source"))
        for engine in self._metrics.engines:
            labels = self._labels(engine.engine)
            family.add_metric([*labels, "local_compute"], value_of(engine.prefilled_tokens))
            family.add_metric([*labels, "local_cache_hit"], value_of(engine.prefix_hit_tokens))
            family.add_metric([*labels, "external_kv_transfer"], 0.0)
        return family

    def _finished(self) -> Metric:
        (ours,) = self._metrics.requests.collect()
        counts = {sample.labels["outcome"]: sample.value for sample in ours.samples}
        family = CounterMetricFamily(*_named("request_success"), labels=(*_LABELS, "finished_reason"))
        for reason, outcomes in _REASONS.items():
            family.add_metric([*self._labels(), reason], sum(counts[one] for one in outcomes))
        return family

    def _gauges(self, name: str, value: Callable[[EngineMetrics], float]) -> Metric:
        family = GaugeMetricFamily(*_named(name), labels=_LABELS)
        for engine in self._metrics.engines:
            family.add_metric(self._labels(engine.engine), value(engine))
        return family

    def _counters(self, name: str, counter: Callable[[EngineMetrics], Counter]) -> Metric:
        family = CounterMetricFamily(*_named(name), labels=_LABELS)
        for engine in self._metrics.engines:
            family.add_metric(self._labels(engine.engine), value_of(counter(engine)))
        return family

    def _histogram(self, name: str, histogram: Histogram) -> Metric:
        """Summed over our labels: vLLM's series have only the model's and the engine's."""
        counts, total = buckets_of(histogram)
        theirs = HistogramMetricFamily(*_named(name), labels=_LABELS)
        theirs.add_metric(self._labels(), list(counts.items()), total)
        return theirs

    def _labels(self, engine: str = _SERVICE) -> list[str]:
        return [self._model_name, engine]


def _named(name: str) -> tuple[str, str]:
    """Return the name and the help of one of vLLM's families."""
    return f"vllm:{name}", f"As vLLM's {name}."


def _kv_usage(engine: EngineMetrics) -> float:
    budget = value_of(engine.kv_budget)
    return value_of(engine.kv_bytes) / budget if budget else 0.0
