"""The series of each engine: its own, across restarts, until it leaves."""

from __future__ import annotations

from scheduler.shared.messages import Counters, DiskCounters
from scheduler.statistics import DeathCause
from scheduler.telemetry import observation
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from tests.fakes.samples import sample
from tests.scheduler.engines.engine_lives import READY


def of_engine(metrics: ModelMetrics, engine: str) -> list[tuple[str, dict[str, str], float]]:
    """Return every series of one engine."""
    return [
        (one.name, one.labels, one.value)
        for family in metrics.registry.collect()
        for one in family.samples
        if one.labels.get("engine") == engine
    ]


def test_an_engine_that_has_left_leaves_no_series() -> None:
    """The others keep theirs, and what the leaver still reports does not bring it back."""
    metrics = Metrics().of_model("tiny")
    totals = {name: EngineTotals(metrics.of_engine(name)) for name in "01"}
    for engine in metrics.engines:
        totals[engine.engine].take(Counters(steps=2, generated_tokens=9, disk=DiskCounters(reads=1)))
        observation.observe_ready(engine, READY)
    left, before = metrics.of_engine("1"), of_engine(metrics, "0")
    metrics.forget_engine("1")
    totals["1"].take(Counters(steps=3))
    left.up.set(1)
    assert of_engine(metrics, "1") == []
    assert of_engine(metrics, "0") == before
    metrics.forget_engine("1")


def test_a_stop_is_no_restart() -> None:
    """An engine that was drained, or whose model was unloaded, ended as it should. Its memory is back."""
    metrics = Metrics().of_model("tiny")
    engine = metrics.of_engine("0")
    engine.weights_bytes.set(70)
    engine.kv_budget.set(30)
    observation.observe_loss(engine, stopped=True)
    observation.observe_death(engine, DeathCause.STOPPED)
    for name in ("engine_restarts_total", "engine_deaths_total", "weights_bytes", "kv_budget_bytes"):
        assert sample(metrics.registry, f"penstock_{name}") == 0
