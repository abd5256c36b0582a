"""Counters only grow, across engine restarts."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from scheduler.engine.budget.policy import Relief
from scheduler.engine.drafts.row_drafts import SOURCES
from scheduler.shared.counters import DraftCounters
from scheduler.shared.messages import Counters, DeviceMemory, MemoryState
from scheduler.telemetry.engine_totals import EngineTotals
from scheduler.telemetry.labels import (
    DRAFT_SOURCES,
    RELIEF_LEVELS,
    STEPS,
)
from scheduler.telemetry.metrics import Metrics, ModelMetrics
from tests.examples import examples


@dataclass(frozen=True, slots=True)
class Step:
    """What one step adds to an engine's totals. Times in eighths of a second, which floats add exactly."""

    rows: int
    prefilled: int
    seconds: int
    running: int

    def after(self, before: Counters) -> Counters:
        return Counters(
            steps=before.steps + 1,
            prefilled_tokens=before.prefilled_tokens + self.prefilled,
            generated_tokens=before.generated_tokens + self.rows,
            busy_seconds=before.busy_seconds + self.seconds,
            running=self.running,
            kv_bytes=10 * self.running,
            memory=DeviceMemory(active=100 * self.running, peak=1 + 100 * self.running),
        )


few = st.integers(0, 1000)
steps = st.builds(Step, few, few, few, few)
lives = st.lists(st.lists(steps, max_size=6), max_size=5)


def read(metrics: ModelMetrics, name: str, **labels: str) -> float:
    """Return the value of engine 0."""
    value = metrics.registry.get_sample_value(name, {"model": "tiny", "engine": "0", **labels})
    assert value is not None, f"no sample {name} {labels}"
    return value


def over(metrics: ModelMetrics, name: str, label: str, values: tuple[str, ...]) -> list[float]:
    return [read(metrics, name, **{label: value}) for value in values]


def test_each_change_of_relief_is_logged_by_name() -> None:
    totals = EngineTotals(Metrics().of_model("tiny").of_engine("0"))
    with capture_logs() as logs:
        for relief in (0, 1, 2, 2, 0):
            totals.take(Counters(guard=MemoryState(relief=relief)))
    assert [line["level"] for line in logs] == ["evict", "small_chunks", "none"]


def test_labels_are_the_engines_names() -> None:
    assert tuple(level.name.lower() for level in Relief) == RELIEF_LEVELS
    assert (*SOURCES, "other") == DRAFT_SOURCES


def test_drafts_are_counted_by_source_over_restarts() -> None:
    """A source of an unknown name is another one. Rows in a step are those that got tokens, not tokens."""
    metrics = Metrics().of_model("tiny")
    totals = EngineTotals(metrics.of_engine("0"))
    first = {"short_match": (7, 5)}
    second = first | {"grammar": (3, 3), "oracle": (4, 1)}
    for life in range(2):
        totals.take(Counters(steps=1, generated_tokens=2 + 5, drafts=DraftCounters(1, first)))
        totals.take(Counters(steps=2, generated_tokens=9 + 4, drafts=DraftCounters(2, second)))
        totals.take(Counters(steps=3, generated_tokens=9 + 6, drafts=DraftCounters(2, second)))
        totals.forget()
        lives = life + 1
        drafted = over(metrics, "penstock_draft_tokens_total", "source", DRAFT_SOURCES)
        assert drafted == [3 * lives, 0, 7 * lives, 4 * lives]
        accepted = over(metrics, "penstock_accepted_draft_tokens_total", "source", DRAFT_SOURCES)
        assert accepted == [3 * lives, 0, 5 * lives, lives]
        assert read(metrics, "penstock_draft_steps_total") == 2 * lives
        assert read(metrics, "penstock_engine_step_decode_rows_sum") == (2 + 2 + 2) * lives


@settings(max_examples=examples(15), deadline=None)
@given(lives)
def test_totals_over_restarts_are_the_sum_of_what_every_engine_did(lives: list[list[Step]]) -> None:
    """Each engine counts from zero; ours never go back and miss nothing. Gauges are the current engine's."""
    metrics = Metrics().of_model("tiny")
    totals = EngineTotals(metrics.of_engine("0"))
    for life in lives:
        engine = Counters()
        for step in life:
            before = read(metrics, "penstock_generated_tokens_total")
            engine = step.after(engine)
            totals.take(engine)
            assert read(metrics, "penstock_generated_tokens_total") >= before
            assert read(metrics, "penstock_running_slots") == step.running
            assert read(metrics, "penstock_kv_bytes") == 10 * step.running
            assert read(metrics, "penstock_device_active_bytes") == 100 * step.running
        totals.forget()
        for gauge in ("running_slots", "kv_bytes", "device_active_bytes", "device_peak_bytes"):
            assert read(metrics, f"penstock_{gauge}") == 0
    taken = [step for life in lives for step in life]
    assert read(metrics, "penstock_generated_tokens_total") == sum(step.rows for step in taken)
    assert read(metrics, "penstock_prefilled_tokens_total") == sum(step.prefilled for step in taken)
    assert read(metrics, "penstock_engine_step_decode_rows_sum") == sum(step.rows for step in taken)
    assert read(metrics, "penstock_engine_step_prefill_tokens_sum") == sum(step.prefilled for step in taken)
    assert sum(over(metrics, "penstock_engine_step_seconds_count", "kind", STEPS)) == len(taken)
    busy = sum(over(metrics, "penstock_engine_step_seconds_sum", "kind", STEPS))
    assert busy == sum(step.seconds for step in taken)


def test_steps_that_an_engine_did_not_speak_of_are_counted_with_the_next_that_it_does() -> None:
    """It sends no output while it prefills a resumed answer: four steps of 2 s, not one of 8."""
    metrics = Metrics().of_model("tiny")
    EngineTotals(metrics.of_engine("0")).take(Counters(steps=4, prefilled_tokens=400, busy_seconds=8.0))
    assert read(metrics, "penstock_engine_step_seconds_count", kind="prefill") == 4
    assert read(metrics, "penstock_engine_step_seconds_bucket", kind="prefill", le="2.5") == 4
    assert read(metrics, "penstock_engine_step_seconds_bucket", kind="prefill", le="1.0") == 0
    assert read(metrics, "penstock_engine_step_prefill_tokens_bucket", le="128.0") == 4
