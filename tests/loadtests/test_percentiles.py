"""Percentiles and Jain's index, against numpy and against their own laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.percentiles import QUANTILES, jain, mean, median, percentile, spread

SAMPLES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)
SHARES = st.lists(st.floats(0, 1e9).filter(lambda share: share == 0 or share > 1e-6), min_size=1, max_size=50)


@given(SAMPLES, st.floats(0, 1))
def test_a_percentile_is_numpys_default(samples: list[float], share: float) -> None:
    """Linear interpolation between order statistics."""
    expected = float(np.percentile(samples, share * 100))
    assert percentile(sorted(samples), share) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(SAMPLES)
def test_percentiles_stand_in_their_order(samples: list[float]) -> None:
    """p50 ≤ p90 ≤ p95 ≤ p99 ≤ max, exactly, whatever the rounding; and max is the largest sample."""
    found = [value for value in spread(samples).values() if value is not None]
    assert len(found) == len(QUANTILES)
    assert found == sorted(found)
    assert found[-1] == max(samples)
    assert found[0] >= min(samples)


@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[float], shuffler: object) -> None:
    """A percentile is of a set."""
    shuffled = list(samples)
    shuffler.shuffle(shuffled)  # type: ignore[attr-defined]
    assert spread(shuffled) == spread(samples)


def test_known_percentiles() -> None:
    """By hand: of 1, 2, 3, 4 the median is 2.5 and p90 lies 0.7 of the way from 3 to 4."""
    found = spread([4.0, 1.0, 3.0, 2.0])
    assert found["p50"] == 2.5
    assert found["p90"] == pytest.approx(3.7)
    assert found["max"] == 4.0
    assert percentile([7.0], 0.99) == 7.0


def test_nothing_has_no_percentile() -> None:
    """None, neither zero nor an error."""
    assert set(spread([]).values()) == {None}
    assert median([]) is None
    assert mean([]) is None
    assert jain([]) is None
    assert jain([0.0, 0.0]) is None


@given(SHARES)
def test_jain_lies_between_one_nth_and_one(shares: list[float]) -> None:
    """1/n if one has everything, 1 if all are equal."""
    index = jain(shares)
    assert (index is None) == (max(shares) == 0)
    if index is not None:
        assert 1 / len(shares) <= index <= 1


@given(SHARES, st.floats(1e-3, 1e3))
def test_jain_does_not_know_units(shares: list[float], factor: float) -> None:
    """Scaled shares are as even as before."""
    index = jain(shares)
    if index is not None:
        assert jain([share * factor for share in shares]) == pytest.approx(index)


@given(st.floats(1e-6, 1e9), st.integers(1, 50))
def test_jain_of_equal_shares_is_one(share: float, tenants: int) -> None:
    """And of one who takes everything, 1/n."""
    assert jain([share] * tenants) == pytest.approx(1)
    assert jain([share] + [0.0] * (tenants - 1)) == pytest.approx(1 / tenants)


def test_a_known_index() -> None:
    """(1 + 3)² / (2 · (1 + 9)) = 0.8."""
    assert jain([1.0, 3.0]) == pytest.approx(0.8)
