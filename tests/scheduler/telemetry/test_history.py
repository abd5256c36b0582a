"""The last five minutes of a model: one sample a second, whether or not somebody looks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.telemetry.history import (
    COLUMNS,
    History,
    Reading,
    quantile,
)
from tests.examples import examples

NONE = ((1.0, 0), (math.inf, 0))


def read(queued: int = 0, ttft: Sequence[tuple[float, float]] = NONE, **figures: float) -> Reading:
    """`figures`: by column, where they are not 0."""
    return Reading({**dict.fromkeys(COLUMNS, 0), **figures}, ttft, NONE, queued)


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


@settings(deadline=None, max_examples=examples(60))
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


EDGES = (0.1, 1.0, 10.0, math.inf)


@settings(deadline=None, max_examples=examples(100))
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
