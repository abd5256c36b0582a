"""The gate of the feed-forward layers, as exact as float32 is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.mlx.cpu import swiglu


@pytest.mark.parametrize("rows", [3, 400], ids=["in the graph", "on the host"])
def test_few_numbers_and_many_are_the_exact_ones(rows: int) -> None:
    """Large ones too, of either sign: nothing overflows, and what is left of a closed gate is nothing. The
    numbers may be slices of what a model goes on with, and stay as they were."""
    gate = mx.concatenate([mx.random.normal((rows, 250)) * 5, mx.full((rows, 2), 1e4)], axis=1)
    both = mx.concatenate([gate, -gate, mx.random.normal((rows, 504))], axis=1)
    before = np.array(both)
    found = np.array(swiglu.swiglu(both[:, :504], both[:, 504:]))
    wide, others = (half.astype(np.float64) for half in np.split(before, 2, axis=1))
    with np.errstate(over="ignore"):
        exact = wide / (1 + np.exp(-wide)) * others
    assert found.dtype == np.float32
    assert np.max(np.abs(found - exact) / np.maximum(np.abs(exact), 1e-6)) < 2e-6
    assert np.array_equal(np.array(both), before)
