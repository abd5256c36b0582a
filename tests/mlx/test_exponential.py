"""Two to the power of x, as exact as float32 is."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from scheduler.engine.rows.exponential import power_of_two


def test_it_is_a_power_of_two() -> None:
    """Over everything that a softmax asks for, to three times the resolution of float32."""
    x = np.concatenate([np.linspace(-125, 0, 200_001), np.linspace(-1, 1, 10_001), np.arange(-125, 127)])
    x = x.astype(np.float32)
    found = np.array(power_of_two(mx.array(x))).astype(np.float64)
    assert np.max(np.abs(found / np.exp2(x.astype(np.float64)) - 1)) < 3.6e-7


def test_what_is_masked_weighs_nothing() -> None:
    """Far below: the smallest normal number, never a NaN or garbage from the bits."""
    found = power_of_two(mx.array([-126.0, -200.0, -1e4, -1e30])).tolist()
    assert found == pytest.approx([2.0**-126] * 4, rel=1e-6, abs=0)
