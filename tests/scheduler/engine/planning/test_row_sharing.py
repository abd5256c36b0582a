"""Which runs of cached tokens rows attend to in place."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.planning import row_sharing
from scheduler.engine.planning.row_sharing import RowPath, bounded_cost, hit_in_place, runs_in_place
from tests.examples import examples

_SHARED_PREFIX = (1, 1000)


@pytest.mark.parametrize(
    ("measured", "token_bytes", "budget_bytes", "cost"),
    [
        (None, 6144, 4 << 30, row_sharing.GROUP_COST_TOKENS),
        (8192, 131_072, 8 << 30, row_sharing.GROUP_COST_TOKENS),
        (8192, 131_072, 64 << 30, 4096),
    ],
    ids=["not measured", "large model", "large model and machine"],
)
def test_copies_that_save_time_take_a_bounded_part_of_the_budget(
    measured: int | None, token_bytes: int, budget_bytes: int, cost: int
) -> None:
    """A 128th: what a group must save to be worth its time is what its rows would hold once more."""
    assert bounded_cost(measured, token_bytes, budget_bytes) == cost
    assert cost <= row_sharing.GROUP_COST_TOKENS or cost * token_bytes <= budget_bytes / 128


def test_nested_prefixes_are_shared_as_deep_as_it_pays() -> None:
    """All behind the shared prefix, four behind a repository."""
    paths = {row: RowPath([_SHARED_PREFIX, (2, 800)], 1800) for row in range(4)}
    paths |= {row: RowPath([_SHARED_PREFIX], 1000) for row in range(4, 8)}
    assert runs_in_place(paths) == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}


def test_one_long_row_does_not_pad_the_others() -> None:
    """Its prompt stays in place although nobody shares it; equal rows pad nobody."""
    paths = {0: RowPath([(1, 6000)], 6001)} | {row: RowPath([], 100) for row in range(1, 9)}
    assert runs_in_place(paths)[0] == 1
    equal = {row: RowPath([(row, 6000)], 6001) for row in range(8)}
    assert set(runs_in_place(equal).values()) == {0}


def test_what_all_begin_with_does_not_hide_a_long_row_s_rest() -> None:
    """A template's few tokens come first on every path, and are worth nothing in place; the book behind them
    is, and stands there with them."""
    paths = {0: RowPath([(1, 3), (2, 5997)], 6001)}
    paths |= {row: RowPath([(1, 3)], 100) for row in range(1, 9)}
    assert runs_in_place(paths) == {0: 2} | dict.fromkeys(range(1, 9), 0)


@settings(deadline=None, max_examples=examples(200))
@given(
    shared=st.lists(st.integers(0, 3000), max_size=8),
    cuts=st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    cost=st.sampled_from([0, 64, 512, 1 << 20]),
)
def test_a_hit_is_charged_for_what_its_row_will_do(shared: list[int], cuts: list[int], cost: int) -> None:
    """Counted by what rows have in common, before the row is there: as when their paths are known, or less,
    as another row may leave more in place then."""
    known = max(cuts)
    ends = sorted({*cuts, *(min(tokens, known) for tokens in shared)} - {0})
    runs = [(end, end - start) for start, end in pairwise((0, *ends))]
    paths = {
        number: RowPath([run for run in runs if run[0] <= one], one) for number, one in enumerate(shared)
    }
    depth = runs_in_place(paths | {-1: RowPath(runs, known)}, cost)[-1]
    charged = hit_in_place(sorted(cuts), shared, shared, cost)
    assert charged <= (ends[depth - 1] if depth else 0)
    assert hit_in_place(sorted(cuts), [], [], cost) == 0
    assert hit_in_place(sorted(cuts), shared, shared, cost, saving=True) == known
    if cost == 0:
        assert charged >= min(known, max(shared, default=0))
