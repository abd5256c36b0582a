"""vLLM's names with several engines: by engine where the figure is an engine's, and sums that are right."""

from __future__ import annotations

from scheduler.shared.messages import CacheCounters, Counters
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from scheduler.telemetry.vllm_names import VllmNames
from tests.fakes.samples import sample


def two_engines() -> ModelMetrics:
    server = Metrics()
    server.registry.register(VllmNames(server))
    metrics = server.of_model("tiny")
    for name, factor in (("0", 1), ("2", 10)):
        engine = metrics.of_engine(name)
        engine.kv_budget.set(20)
        engine.now = Counters(
            running=3 * factor,
            waiting=factor,
            kv_bytes=factor,
            generated_tokens=5 * factor,
            prefilled_tokens=7 * factor,
            cache=CacheCounters(hit_tokens=9 * factor),
        )
    metrics.queued.set(100)
    metrics.ttft["cold"].observe(0.5)
    return metrics


def test_each_engine_has_its_own_series() -> None:
    """Under its own name, as vLLM's data-parallel engines."""
    registry = two_engines().registry
    for engine, factor in (("0", 1), ("2", 10)):
        labels = {"model_name": "tiny", "engine": engine}
        assert sample(registry, "vllm:num_requests_running", **labels) == 3 * factor
        assert sample(registry, "vllm:kv_cache_usage_perc", **labels) == factor / 20
        assert sample(registry, "vllm:generation_tokens_total", **labels) == 5 * factor
        computed = sample(registry, "vllm:prompt_tokens_by_source_total", source="local_compute", **labels)
        assert computed == 7 * factor
        assert sample(registry, "vllm:prompt_tokens_cached_total", **labels) == 9 * factor
        assert sample(registry, "vllm:prompt_tokens_total", **labels) == 16 * factor


def test_what_is_the_services_is_there_once() -> None:
    """The one queue, and requests: a router that sums over engines must not see them twice."""
    metrics = two_engines()
    for name, value in {
        "vllm:num_requests_waiting": 100 + 1 + 10,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:request_success_total": 0,
    }.items():
        assert sample(metrics.registry, name) == value
        assert sample(metrics.registry, name, engine="0") == value
