"""The series of each engine: its own, from zero, across restarts, until it leaves."""

from __future__ import annotations

from scheduler.shared.messages import CacheCounters, Counters, DeviceMemory, DiskCounters, MemoryState
from scheduler.statistics import DeathCause
from scheduler.telemetry import observation
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from tests.fakes.samples import sample


def labelled(metrics: ModelMetrics, engine: str) -> dict[tuple[str, ...], float]:
    """Every series of one engine, by its name and its other labels."""
    return {
        (one.name, *(value for label, value in sorted(one.labels.items()) if label != "engine")): one.value
        for family in metrics.registry.collect()
        for one in family.samples
        if one.labels.get("engine") == engine
    }


def busy(number: int) -> Counters:
    """Totals after `number` steps, different in every part."""
    return Counters(
        steps=number,
        prefilled_tokens=3 * number,
        generated_tokens=5 * number,
        busy_seconds=float(number),
        running=number,
        preemptions=number,
        cache=CacheCounters(hit_tokens=7 * number, evicted_cleared_tokens=number),
        disk=DiskCounters(reads=number, errors={"io": number}),
        memory=DeviceMemory(active=11 * number),
        guard=MemoryState(relief=number % 2, used=number),
    )


def describe(engine: EngineMetrics, device: str) -> None:
    labels = dict.fromkeys(("model_type", "weights_dtype", "kv_cache_dtype", "fallbacks"), "x")
    engine.describe_model({**labels, "device": device})


def test_an_engine_that_has_left_leaves_no_series() -> None:
    """The others keep theirs, and what the leaver still reports does not bring it back."""
    metrics = Metrics().of_model("tiny")
    totals = {name: EngineTotals(metrics.of_engine(name)) for name in "01"}
    for engine in metrics.engines:
        totals[engine.engine].take(busy(2))
        describe(engine, "cpu")
    left, before = metrics.of_engine("1"), labelled(metrics, "0")
    metrics.forget_engine("1")
    totals["1"].take(busy(3))
    left.up.set(1)
    assert labelled(metrics, "1") == {}
    assert labelled(metrics, "0") == before
    assert [engine.engine for engine in metrics.engines] == ["0"]
    metrics.forget_engine("1")
    metrics.forget_engine("never here")


def described(metrics: ModelMetrics, engine: str) -> list[str]:
    (family,) = (one for one in metrics.registry.collect() if one.name == "penstock_model_info")
    return [one.labels["device"] for one in family.samples if one.labels["engine"] == engine]


def test_a_stop_is_no_restart() -> None:
    """An engine that was drained, or whose model was unloaded, ended as it should. Its memory is back."""
    metrics = Metrics().of_model("tiny")
    engine = metrics.of_engine("0")
    engine.up.set(1)
    engine.weights_bytes.set(70)
    engine.kv_budget.set(30)
    observation.observe_loss(engine, stopped=True)
    observation.observe_death(engine, DeathCause.STOPPED)
    for name in ("restarts_total", "deaths_total", "up"):
        assert sample(metrics.registry, f"penstock_engine_{name}") == 0
    assert sample(metrics.registry, "penstock_weights_bytes") == 0
    assert sample(metrics.registry, "penstock_kv_budget_bytes") == 0
