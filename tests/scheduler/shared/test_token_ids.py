"""Token ids as arrays: compact, and compared by bisection."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.shared.token_ids import common_run, compact


@settings(deadline=None)
@given(left=st.lists(st.integers(0, 1), max_size=40), start=st.integers(0, 9), data=st.data())
def test_a_common_run_ends_at_the_first_difference(left: list[int], start: int, data: st.DataObject) -> None:
    """The bisection finds what a walk token by token finds."""
    right = data.draw(st.lists(st.integers(0, 1), max_size=40) | st.just(left[start:]))
    limit = max(0, min(len(left) - start, len(right)))
    walked = next((i for i in range(limit) if left[start + i] != right[i]), limit)
    assert common_run(compact(left), start, compact(right), limit) == walked
