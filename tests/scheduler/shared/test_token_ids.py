"""Token ids as arrays: compact, and compared by bisection."""

from __future__ import annotations

from array import array

import pytest
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


def test_an_array_of_ids_is_not_copied() -> None:
    """Every holder of a prompt's ids can have the same array; anything else is copied into one."""
    ids = array("I", [1, 2, 3])
    assert compact(ids) is ids
    assert compact([1, 2, 3]) == compact(array("q", [1, 2, 3])) == ids


@pytest.mark.parametrize("outside", [-1, 2**32])
def test_an_id_that_needs_more_than_32_bits_is_refused(outside: int) -> None:
    """It is no token of any vocabulary."""
    with pytest.raises(OverflowError):
        compact([outside])
