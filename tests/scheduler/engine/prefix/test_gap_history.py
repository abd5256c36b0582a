"""Buckets of ages, and what it is worth to keep something at an age."""

from __future__ import annotations

from math import isclose

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.prefix.gap_history import (
    BUCKETS,
    EDGES,
    GapHistory,
    bucket_of,
    hazards,
    hit_densities,
)

PURE = settings(deadline=None)
shares = st.lists(st.floats(0.0, 1.0), min_size=BUCKETS, max_size=BUCKETS)
gaps = st.lists(st.floats(0.0, 1e5), max_size=60)


@PURE
@given(st.floats(-10.0, 1e9))
def test_an_age_lies_between_its_buckets_edges(age: float) -> None:
    """The last bucket has no end; before the first edge there is nothing."""
    bucket = bucket_of(age)
    assert 0 <= bucket < BUCKETS
    assert bucket == 0 or EDGES[bucket] <= age
    assert bucket == BUCKETS - 1 or age < EDGES[bucket + 1]


@PURE
@given(shares)
def test_a_density_is_the_best_of_all_times_to_stop(of_bucket: list[float]) -> None:
    """Compared with a sum for each end, written as the definition has it."""
    found = hit_densities(of_bucket)
    for start in range(BUCKETS):
        best, alive, hits, seconds = 0.0, 1.0, 0.0, 0.0
        for at in range(start, BUCKETS):
            hits += alive * of_bucket[at]
            seconds += alive * (EDGES[at + 1] - EDGES[at]) * (1 - of_bucket[at] / 2)
            best, alive = max(best, hits / seconds), alive * (1 - of_bucket[at])
        assert isclose(found[start], best, rel_tol=0.05, abs_tol=1e-12)


@PURE
@given(gaps, st.floats(2.0, 50.0))
def test_a_history_is_a_share_of_each_bucket(seen: list[float], most: float) -> None:
    """Never more returns than there were chances, whatever was seen; and what was long ago counts less."""
    history = GapHistory(most)
    for gap in seen:
        history.waited(0, bucket_of(gap))
        history.came(bucket_of(gap))
    for came, reached in zip(history.returned, history.reached, strict=True):
        assert 0 <= came <= reached + 1e-9
        assert reached <= most + 1
    for share in hazards((0.1,) * BUCKETS, (history,), 2.0):
        assert 0 <= share <= 1


def test_what_is_due_soon_is_worth_more_than_what_just_left() -> None:
    """Gaps of about a minute: at 40 seconds the next use is near, at 1 second it is not, after five minutes
    nobody has ever come back."""
    history = GapHistory(100.0)
    for gap in (50.0, 55.0, 60.0, 58.0, 52.0) * 8:
        history.waited(0, bucket_of(gap))
        history.came(bucket_of(gap))
    worth = hit_densities(hazards((0.01,) * BUCKETS, (history,), 2.0))
    assert worth[bucket_of(40.0)] > worth[bucket_of(1.0)] > worth[bucket_of(300.0)]
