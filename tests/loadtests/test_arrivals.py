"""Open loops start their sessions in order, before the end, at the configured rate and burstiness."""

from __future__ import annotations

import random
import statistics
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.arrivals import offsets, resolved
from loadtests.scenario import Burst, OfCapacity, Poisson, Ramp, ScenarioError, Schedule

rates = st.floats(0.01, 50.0)
arrivals = st.one_of(
    st.builds(Poisson, kind=st.just("poisson"), rate=rates, burstiness=st.floats(0.01, 20.0)),
    st.builds(
        Ramp,
        kind=st.just("ramp"),
        rate_from=st.one_of(st.just(0.0), rates),
        rate_to=rates,
        seconds=st.floats(0.01, 100.0),
    ),
    st.builds(Schedule, kind=st.just("schedule"), at_seconds=st.lists(st.floats(0, 99), min_size=1)),
    st.builds(Burst, kind=st.just("burst"), clients=st.integers(1, 40)),
)


@settings(derandomize=True, deadline=None)
@given(plan=arrivals, seed=st.integers(0, 99), until=st.floats(0.01, 40.0))
def test_offsets_ascend_end_and_repeat(
    plan: Poisson | Ramp | Schedule | Burst, seed: int, until: float
) -> None:
    """Never before the start, never at or after the end, ascending, and equal for equal seeds."""
    drawn = list(offsets(plan, random.Random(seed), until))
    assert all(0 <= offset < until for offset in drawn)
    assert drawn == sorted(drawn)
    assert drawn == list(offsets(plan, random.Random(seed), until))


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_burstiness_asked_for(burstiness: float) -> None:
    """Gamma gaps of shape k: mean 1/rate, squared coefficient of variation 1/k."""
    plan = Poisson(kind="poisson", rate=5.0, burstiness=burstiness)
    gaps = [b - a for a, b in pairwise(offsets(plan, random.Random(1), 8000.0))]
    assert statistics.mean(gaps) == pytest.approx(1 / 5.0, rel=0.03)
    variation = statistics.variance(gaps) / statistics.mean(gaps) ** 2
    assert variation == pytest.approx(1 / burstiness, rel=0.1)


@pytest.mark.parametrize(
    ("rate_from", "rate_to"), [(0.0, 40.0), (40.0, 4.0), (10.0, 10.0), (10.0, 10.0000001)]
)
def test_a_ramp_grows_evenly_and_then_stays(rate_from: float, rate_to: float) -> None:
    """In each tenth of the ramp, and after it, arrivals match the rate's integral."""
    plan = Ramp(kind="ramp", rate_from=rate_from, rate_to=rate_to, seconds=100.0)
    drawn = list(offsets(plan, random.Random(2), 150.0))
    for start in range(0, 150, 10):
        middle = min(start + 5, 100)
        expected = 10 * (rate_from + (rate_to - rate_from) * middle / 100)
        arrived = sum(start <= offset < start + 10 for offset in drawn)
        assert abs(arrived - expected) < 5 * expected**0.5 + 1, start


def test_a_schedule_is_kept_to_the_second() -> None:
    """In order, whatever the file's order, and without arrivals after the end."""
    plan = Schedule(kind="schedule", at_seconds=(3.0, 0.5, 9.0, 3.0))
    assert list(offsets(plan, random.Random(0), 9.0)) == [0.5, 3.0, 3.0]


def test_a_burst_is_one_instant() -> None:
    """All at the start."""
    assert list(offsets(Burst(kind="burst", clients=3), random.Random(0), 1.0)) == [0.0, 0.0, 0.0]


def test_a_multiple_of_capacity_is_a_rate() -> None:
    """Without capacity it is an error, not a division by zero."""
    plan = OfCapacity(kind="of-capacity", multiple=5.0)
    assert resolved(plan, 8.0) == Poisson(kind="poisson", rate=40.0)
    with pytest.raises(ScenarioError, match="the capacity probe measured 0 sessions"):
        resolved(plan, 0.0)
