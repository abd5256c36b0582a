"""The series of each engine: its own, from zero, across restarts, until it leaves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics import MetricWrapperBase

from scheduler.shared.messages import CacheCounters, Counters, DeviceMemory, DiskCounters, MemoryState
from scheduler.statistics import DeathCause, EngineCondition
from scheduler.telemetry import observation
from scheduler.telemetry.engine_metrics import EngineMetrics
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.labels import CONDITIONS
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from tests.examples import examples
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


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("01"), st.integers(1, 9)), max_size=12))
def test_two_engines_at_once_do_not_mix(turns: list[tuple[str, int]]) -> None:
    """Each one's series are those that it would have alone, however their steps interleave."""
    together = Metrics().of_model("tiny")
    totals = {name: EngineTotals(together.of_engine(name)) for name in "01"}
    for name in "01":
        alone = Metrics().of_model("tiny")
        of_one = EngineTotals(alone.of_engine(name))
        steps = 0
        for turn, more in turns:
            if turn == name:
                steps += more
                of_one.take(busy(steps))
                totals[name].take(busy(steps))
        assert labelled(together, name) == labelled(alone, name)


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


def test_a_step_looks_up_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of steps a second: the series of every label value are found once, when the engine joins."""
    metrics = Metrics().of_model("tiny")
    totals = EngineTotals(metrics.of_engine("0"))

    def labels(self: MetricWrapperBase, *_: object, **__: object) -> None:
        raise AssertionError(f"{self} is looked up in a step")

    monkeypatch.setattr(MetricWrapperBase, "labels", labels)
    for number in (1, 2, 3):
        totals.take(busy(number))


def described(metrics: ModelMetrics, engine: str) -> list[str]:
    (family,) = (one for one in metrics.registry.collect() if one.name == "penstock_model_info")
    return [one.labels["device"] for one in family.samples if one.labels["engine"] == engine]


def test_each_engine_has_its_own_device() -> None:
    """One series an engine: a restart on another device replaces its own."""
    metrics = Metrics().of_model("tiny")

    for name in "01":
        describe(metrics.of_engine(name), f"gpu {name}")
    describe(metrics.of_engine("0"), "cpu")
    assert (described(metrics, "0"), described(metrics, "1")) == (["cpu"], ["gpu 1"])


def test_engines_are_counted_by_condition() -> None:
    metrics = Metrics().of_model("tiny")
    observation.observe_engines(metrics, ["ready", "ready", "draining"])
    observation.observe_engines(metrics, ["ready", "failed"])
    counts = {one: sample(metrics.registry, "penstock_engines", condition=one) for one in CONDITIONS}
    assert counts == {**dict.fromkeys(CONDITIONS, 0), "ready": 1, "failed": 1}
    assert {condition.value for condition in EngineCondition} <= set(CONDITIONS)


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
