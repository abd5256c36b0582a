"""The core `vllm:*` series, for dashboards and gateways, made from our own at each scrape.

Names and labels are vLLM 0.33.0's, so that dashboards made for it, gateway scorers and `server.type: vllm`
work unchanged. They are aliases: a query uses one family or the other, never both. Each model has its series,
labelled with its name. What one of its engines has is labelled with that one's name; what belongs to none
(the queue, the requests) is labelled as engine 0's, once: a sum over engines is right, and is what vLLM's
series are for.

Series that are divided by one another come from the same counters. Prompt tokens are, as in vLLM, those that
engines have dealt with: computed or found in the prefix cache, for each choice of a request, and again after
a preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import Histogram
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from scheduler.shared.counters import Counters
from scheduler.shared.figures import figures_of
from scheduler.telemetry.engine_metrics import FAMILIES, EngineMetrics
from scheduler.telemetry.instruments import buckets_of, value_of
from scheduler.telemetry.metrics import Metrics, ModelMetrics

_LABELS = ("model_name", "engine")
_NO_ENGINE = "0"
"""The engine of series that belong to none, whether or not an engine of this name is left."""
_REASONS = {
    "stop": ("stop", "tool_calls"),
    "length": ("length", "repetition"),
    "abort": ("cancelled", "deadline"),
    "error": ("error",),
}
"""vLLM's finished_reason from our outcomes; vLLM does not count rejected requests."""
_SOURCES: dict[str, Callable[[EngineMetrics], float]] = {
    "local_compute": lambda engine: engine.totals.prefilled_tokens,
    "local_cache_hit": lambda engine: engine.totals.cache.hit_tokens,
    "external_kv_transfer": lambda engine: 0.0,
}
"""Where an engine's prompt tokens came from; together they are all of them."""
_HISTOGRAMS: dict[str, Callable[[ModelMetrics], Iterable[Histogram]]] = {
    "time_to_first_token_seconds": lambda model: model.ttft.values(),
    "inter_token_latency_seconds": lambda model: [model.itl],
    "request_time_per_output_token_seconds": lambda model: [model.tpot],
    "e2e_request_latency_seconds": lambda model: [model.e2e],
    "request_queue_time_seconds": lambda model: [model.queue_seconds],
    "request_prefill_time_seconds": lambda model: [model.prefill_seconds],
    "request_decode_time_seconds": lambda model: [model.decode_seconds],
    "request_prompt_tokens": lambda model: [model.request_prompt_tokens],
    "request_generation_tokens": lambda model: [model.request_output_tokens],
}
"""Ours by vLLM's names, summed over our labels: vLLM's series have only the model's and the engine's."""


class VllmNames(Collector):
    """Reads the instruments of every model at each scrape; keeps nothing."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        for figure, read in figures_of(Counters).items():
            values = [(labels, read(engine.totals)) for labels, engine in self._engines() if figure.vllm]
            for name in figure.vllm:
                yield _family(FAMILIES[figure.kind], name, values)
        waiting = GaugeMetricFamily(*_named("num_requests_waiting"), labels=_LABELS)
        for model in self._metrics.models:
            # To a router, waiting in the queue and waiting for a slot in an engine are the same.
            held = sum(engine.now.waiting for engine in model.engines)
            waiting.add_metric([model.model, _NO_ENGINE], value_of(model.queued) + held)
        yield waiting
        usage = [(labels, _kv_usage(engine)) for labels, engine in self._engines()]
        yield _family(GaugeMetricFamily, "kv_cache_usage_perc", usage)
        yield from self._prompt_tokens()
        yield self._finished()
        for name, series in _HISTOGRAMS.items():
            theirs = HistogramMetricFamily(*_named(name), labels=_LABELS)
            for model in self._metrics.models:
                counts, total = buckets_of(*series(model))
                theirs.add_metric([model.model, _NO_ENGINE], list(counts.items()), total)
            yield theirs

    def _prompt_tokens(self) -> Iterator[Metric]:
        whole = CounterMetricFamily(*_named("prompt_tokens"), labels=_LABELS)
        by_source = CounterMetricFamily(*_named("prompt_tokens_by_source"), labels=(*_LABELS, "source"))
        for labels, engine in self._engines():
            tokens = {source: count(engine) for source, count in _SOURCES.items()}
            whole.add_metric(labels, sum(tokens.values()))
            for source, count in tokens.items():
                by_source.add_metric([*labels, source], count)
        yield whole
        yield by_source

    def _finished(self) -> Metric:
        family = CounterMetricFamily(*_named("request_success"), labels=(*_LABELS, "finished_reason"))
        for model in self._metrics.models:
            for reason, outcomes in _REASONS.items():
                count = sum(value_of(model.requests[one]) for one in outcomes)
                family.add_metric([model.model, _NO_ENGINE, reason], count)
        return family

    def _engines(self) -> Iterator[tuple[list[str], EngineMetrics]]:
        """Yield the engines of every model, each with its labels."""
        for model in self._metrics.models:
            for engine in model.engines:
                yield [model.model, engine.engine], engine


def _named(name: str) -> tuple[str, str]:
    """Return the name and the help of one of vLLM's families."""
    return f"vllm:{name}", f"As vLLM's {name}."


def _family(
    made: type[CounterMetricFamily | GaugeMetricFamily], name: str, values: Iterable[tuple[list[str], float]]
) -> Metric:
    family = made(*_named(name), labels=_LABELS)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _kv_usage(engine: EngineMetrics) -> float:
    budget = value_of(engine.kv_budget)
    return engine.now.kv_bytes / budget if budget else 0.0
