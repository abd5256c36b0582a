"""What a step with drafts costs: learnt a width at a time, and forgotten again."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine.drafts.verify_costs import DRAFTED, VerifyCosts


def _learnt(rows: int = 4, plain: float = 0.01, drafted: Iterable[tuple[int, float]] = ()) -> VerifyCosts:
    """`drafted`: the drafts a row, and the step's time as a multiple of a plain one's."""
    costs = VerifyCosts()
    for _ in range(20):
        costs.learn(plain, rows, 0)
    for width, ratio in drafted:
        costs.learn(ratio * plain, rows, width)
    return costs


def _known(costs: VerifyCosts, rows: int = 4) -> list[int]:
    """Return the widths that may be tried."""
    return [width for width in DRAFTED if math.isfinite(costs.ratio(rows, width))]


def test_unknown_widths_are_tried_one_at_a_time() -> None:
    """From the smallest on; each is as far above the one before as that is above a plain step."""
    costs = _learnt()
    for tried, width in enumerate(DRAFTED, 1):
        assert _known(costs) == [*DRAFTED[:tried]]
        costs.learn(0.01 * (1 + 0.1 * width), 4, width)
        assert costs.ratio(4, width) == pytest.approx(1 + 0.1 * width, rel=1e-3)
        if tried < len(DRAFTED):
            following = DRAFTED[tried]
            assert costs.ratio(4, following) == pytest.approx(1 + 0.1 * following, rel=1e-3)


def test_one_outlier_among_several_counts_for_nothing() -> None:
    """In either direction: a compiler, a busy machine, a clock that jumped."""
    for outlier in (100.0, 0.01):
        costs = _learnt(drafted=[(1, 1.3), (1, outlier), (1, 1.3), (1, 1.4)])
        assert costs.ratio(4, 1) == pytest.approx(1.3, rel=1e-3)
    assert _learnt(drafted=[(1, 100.0)]).ratio(4, 1) == pytest.approx(1.1), "a single one excludes nothing"


def _plain_steps_until_tried_again(costs: VerifyCosts, rows: int = 4) -> int:
    for steps in range(5000):
        if costs.ratio(rows, 1) < 2:
            return steps
        costs.learn(0.01, rows, 0)
    raise AssertionError("a width is excluded for ever")


def test_what_was_dear_whenever_it_was_tried_is_forgotten_more_slowly() -> None:
    """One measurement after another."""
    costs = _learnt(drafted=[(1, 100.0)] * 9)
    assert 256 < _plain_steps_until_tried_again(costs) <= 4 * 256


@given(
    steps=st.lists(st.tuples(st.sampled_from([0, *DRAFTED]), st.floats(1e-5, 10.0)), max_size=60),
    rows=st.integers(1, 64),
)
def test_a_ratio_is_a_positive_number_or_infinite(steps: list[tuple[int, float]], rows: int) -> None:
    """Whatever was measured; what is known stays known, and what is behind the first unknown is not tried."""
    costs = VerifyCosts()
    for width, seconds in steps:
        costs.learn(seconds, rows, width)
    costs.learn(0.01, rows, 0)
    ratios = [costs.ratio(rows, width) for width in DRAFTED]
    assert all(ratio > 0 for ratio in ratios)
    finite = [math.isfinite(ratio) for ratio in ratios]
    assert finite == sorted(finite, reverse=True)
    assert finite[0]
