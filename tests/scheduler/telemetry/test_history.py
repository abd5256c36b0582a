"""The last five minutes of a model: one sample a second, whether or not somebody looks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from scheduler.shared.messages import CacheCounters, Counters, ScriptedPlan
from scheduler.telemetry.history import (
    COLUMNS,
    KEPT_SAMPLES,
    WINDOW_SAMPLES,
    History,
    Reading,
    quantile,
    reading_of,
)
from scheduler.telemetry.metrics import Metrics
from tests.examples import examples
from tests.fakes.loopback_engine import LoopbackLauncher
from tests.fakes.scheduling import answer, ask, make_scheduler, running

NONE = ((1.0, 0), (math.inf, 0))


def read(queued: int = 0, ttft: Sequence[tuple[float, float]] = NONE, **figures: float) -> Reading:
    """`figures`: by column, where they are not 0."""
    return Reading({**dict.fromkeys(COLUMNS, 0), **figures}, ttft, NONE, queued)


IDLE = read()


def test_rates_are_of_the_second_and_gauges_of_its_end() -> None:
    history = History()
    history.add(100.0, read(generated=50))
    assert history.number == 0, "a rate needs two readings"
    history.add(102.0, read(generated=70, prefilled=10, queued=3, prefix_bytes=7))
    columns = history.since(0)
    assert tuple(columns) == COLUMNS
    assert {name: value for name, [value] in columns.items()} == {
        **dict.fromkeys(COLUMNS, 0.0),
        **dict.fromkeys(("ttft_p50", "ttft_p95", "itl_p50", "itl_p95"), None),
        "time": 102.0,
        "generated": 10.0,
        "prefilled": 5.0,
        "queued": 3.0,
        "prefix_bytes": 7.0,
    }


def test_an_engine_that_left_makes_no_negative_rate() -> None:
    """Its totals are gone with it."""
    history = History()
    history.add(0.0, read(generated=50))
    history.add(1.0, IDLE)
    assert history.since(0)["generated"] == [0.0]


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(st.integers(0, 25), st.integers(0, 25))
def test_a_reader_gets_each_kept_sample_once_in_order(samples: int, seen: int) -> None:
    """The newest ones, as many as it has not seen."""
    history = History(kept=8)
    for second in range(samples + 1):
        history.add(float(second), read(generated=second * second))
    seen = min(seen, samples)
    expected = range(max(seen, samples - 8) + 1, samples + 1)
    columns = history.since(seen)
    assert columns["time"] == list(expected)
    assert columns["generated"] == [2 * second - 1 for second in expected]


def test_quantiles_forget_what_is_older_than_their_window() -> None:
    """A slow first token is not in the figure for ever."""
    history = History()
    slow = read(ttft=((1.0, 0), (math.inf, 4)))
    history.add(0.0, IDLE)
    for second in range(1, 2 * WINDOW_SAMPLES):
        history.add(float(second), slow)
    found = history.since(0)["ttft_p95"]
    assert found == [1.0] * WINDOW_SAMPLES + [None] * (WINDOW_SAMPLES - 1)


EDGES = (0.1, 1.0, 10.0, math.inf)


@settings(deadline=None, derandomize=True, max_examples=examples(100))
@given(st.lists(st.integers(0, 5), min_size=4, max_size=4), st.floats(0.01, 0.99))
def test_a_quantile_is_within_the_bucket_of_that_share(counts: list[int], share: float) -> None:
    """And none of what was observed before counts."""
    then = [(edge, 7.0 * place) for place, edge in enumerate(EDGES)]
    now = [(edge, last + sum(counts[: place + 1])) for place, (edge, last) in enumerate(then)]
    found = quantile(now, then, share)
    if not sum(counts):
        assert math.isnan(found)
        return
    wanted = share * sum(counts)
    bucket = next(place for place in range(4) if sum(counts[: place + 1]) >= wanted)
    low = 0.0 if bucket == 0 else EDGES[bucket - 1]
    assert low <= found <= (low if bucket == 3 else EDGES[bucket])


def test_a_reading_is_the_sum_over_engines() -> None:
    metrics = Metrics().of_model("tiny")
    for name, factor in (("0", 1), ("1", 10)):
        metrics.of_engine(name).now = Counters(
            generated_tokens=factor,
            waiting=2 * factor,
            running=3 * factor,
            kv_bytes=4 * factor,
            cache=CacheCounters(kept_bytes=5 * factor),
        )
    metrics.ttft["cold"].observe(0.3)
    metrics.ttft["warm"].observe(0.3)
    reading = reading_of(metrics, queued=6)
    assert reading.queued == 6
    assert reading.figures == {
        "generated": 11,
        "prefilled": 0,
        "cached": 0,
        "engine_waiting": 22,
        "running": 33,
        "running_bytes": 44,
        "prefix_bytes": 55,
    }
    assert reading.ttft[-1] == (math.inf, 2)


@trio_test
async def test_a_scheduler_keeps_it_while_nobody_looks(autojump_clock: MockClock) -> None:
    """Rates while it works, zeros while it rests; five minutes, and no more."""
    scheduler = make_scheduler(LoopbackLauncher(), ScriptedPlan(step_seconds=0.1))
    async with running(scheduler):
        await answer(scheduler, ask(max_tokens=50))
        await trio.sleep(20)
        columns = scheduler.history.since(0)
        assert sum(value or 0 for value in columns["generated"]) == 50
        assert max(value or 0 for value in columns["running"]) == 1
        assert columns["generated"][-1] == columns["running"][-1] == 0
        assert 0.1 in [round(value, 3) for value in columns["itl_p50"] if value]
        await trio.sleep(400)
        assert len(scheduler.history.since(0)["time"]) == KEPT_SAMPLES
