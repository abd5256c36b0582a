"""The exponential and the parts of a softmax, as exact as float32 is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.device import Traits
from scheduler.engine.mlx.cpu.softmax import power_of_two, softmax_parts
from scheduler.engine.mlx.device import METAL, X86, forced


def test_it_is_a_power_of_two() -> None:
    """Over everything that a softmax asks for, to three times the resolution of float32."""
    x = np.concatenate([np.linspace(-99, 0, 200_001), np.linspace(-1, 1, 10_001), np.arange(-99, 127)])
    x = x.astype(np.float32)
    found = np.array(power_of_two(mx.array(x))).astype(np.float64)
    assert np.max(np.abs(found / np.exp2(x.astype(np.float64)) - 1)) < 3.6e-7


def test_what_is_masked_weighs_nothing() -> None:
    """Far below the maximum: zero beside 1, never NaN or garbage from the bits, and a normal number also when
    multiplied with a small value: subnormal ones cost x86 ten times as much."""
    found = np.array(power_of_two(mx.array([-101.0, -126.0, -200.0, -1e4, -1e30])))
    assert found == pytest.approx([2.0**-100] * 5, rel=1e-6, abs=0)
    assert 1e-7 * found.min() > np.finfo(np.float32).tiny


@pytest.mark.parametrize("device", [X86, METAL], ids=["x86", "other"])
@pytest.mark.parametrize("queries", [1, 300])
def test_few_scores_and_many_have_the_same_parts(queries: int, device: Traits) -> None:
    """In the graph, on the host and as MLX's own: the maximum, the weights and their sum, of what is masked
    too."""
    random = np.random.default_rng(queries)
    scores = (20 * random.standard_normal((2, queries, 300))).astype(np.float32)
    scores[:, :, 250:] = -1e30
    with forced(device):
        most, weights, total = (np.array(part) for part in softmax_parts(mx.array(scores)))
    exact = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    assert np.array_equal(most, scores.max(axis=-1, keepdims=True))
    assert np.max(np.abs(weights - exact)) < 1e-6
    assert np.max(np.abs(total / exact.sum(axis=-1, keepdims=True) - 1)) < 1e-6


def test_what_somebody_else_holds_is_not_overwritten() -> None:
    """The scores are the caller's own; what they were computed from stays as it was."""
    keys = mx.random.normal((2, 400, 8))
    before = np.array(keys)
    softmax_parts(keys @ keys.swapaxes(-1, -2))
    assert np.array_equal(np.array(keys), before)
