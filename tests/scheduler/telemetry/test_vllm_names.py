"""vLLM's names with several engines: by engine where the figure is an engine's, and sums that are right."""

from __future__ import annotations

from functools import partial

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


def test_an_engine_that_leaves_takes_its_series_along() -> None:
    """Also the first one: the queue's series stay where they were."""
    metrics = two_engines()
    metrics.forget_engine("0")
    assert sample(metrics.registry, "vllm:num_requests_running") == 30
    assert sample(metrics.registry, "vllm:num_requests_waiting", engine="0") == 110


def test_an_engine_whose_budget_is_unknown_has_an_empty_cache() -> None:
    metrics = two_engines()
    metrics.of_engine("3").now = Counters(kv_bytes=5)
    assert sample(metrics.registry, "vllm:kv_cache_usage_perc", engine="3") == 0


def test_each_model_has_its_own_series() -> None:
    """A router asks by model; two models' engines of the same name are not one engine."""
    metrics = two_engines()
    other = metrics.server.of_model("large")
    other.of_engine("0").now = Counters(running=1)
    other.queued.set(4)
    other.requests["stop"].inc(6)
    other.itl.observe(0.1)
    for model, figures in {"tiny": (3, 111, 0, 0, 1), "large": (1, 4, 6, 1, 0)}.items():
        read = partial(sample, metrics.registry, model_name=model, engine="0")
        assert figures == (
            read("vllm:num_requests_running"),
            read("vllm:num_requests_waiting"),
            read("vllm:request_success_total", finished_reason="stop"),
            read("vllm:inter_token_latency_seconds_count"),
            read("vllm:time_to_first_token_seconds_count"),
        )
