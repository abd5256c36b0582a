"""The exponential and the parts of a softmax, as the device computes them best.

MLX's exp is one libm call per number on x86 CPUs, 11 to 20 ns: nine tenths of the time of attention over a
long prefix. There
- many scores are evaluated and handed to NumPy where they lie, whose loops use the processor's vectors: for
  786,432 scores, exp takes 0.3 ms instead of 16, maximum, difference and sum 0.6 instead of 1.4;
- fewer stay in MLX's graph, which no step waits for, and 2**x is made from its bits and a polynomial (3.4 ms
  for the same scores);
- for few, as one or two rows have, libm's calls take less than our operations: attention and gate are MLX's
  own (`FEW`).
Elsewhere (Metal, CUDA, Apple's CPUs) all of it is MLX's own. See `mlx/device.py`.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from scheduler.engine.mlx.device import device

# Chebyshev fit of 2**x on [-1/2, 1/2]; its relative error is 1.1e-7, half of float32's resolution.
_COEFFICIENTS = (
    0.00134004417095362,
    0.009676046747499872,
    0.05550327190348713,
    0.24022107174899823,
    0.6931472067218047,
    1.0000000755330436,
)
_ROUNDING = 12582912.0
"""1.5 * 2**23: adding it to a float32 leaves the nearest integer in the lowest bits."""
_LEAST = -100.0
"""Weights below 2**-100 count as zero; times a value this is still a normal float32. With 2**-126, the least,
products were subnormal, and with values in the padding 32 rows took ten times as long (x86)."""
_FARTHEST = -87.0
"""e**-87 is about the least normal float32. At -1e30 the result of a GPU's fast exponential is undefined, and
NaN times a weight of 0 would be NaN."""
FEW = 1 << 13
"""Up to this number one libm call each takes less than the graph's twelve operations, which cost 60 µs
whatever their size: 1,024 numbers 11 µs instead of 58. A decode step has two of these in each layer."""
_MANY_SCORES = 1 << 15
"""Number of scores from which on NumPy is faster, although the step waits for pending work: about 32 rows of
6 heads at 170 tokens."""


def power_of_two(x: mx.array) -> mx.array:
    """Return 2**x for float32 x of at most 127."""
    x = mx.maximum(x, _LEAST)
    if x.size <= FEW:
        return mx.exp(x * math.log(2))
    shifted = x + _ROUNDING
    fraction = x - (shifted - _ROUNDING)
    power = mx.full((), _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        power = power * fraction + coefficient
    exponent = mx.left_shift(shifted.view(mx.int32), 23) + mx.array(127 << 23, mx.int32)
    return power * exponent.view(mx.float32)


def weight(x: mx.array) -> mx.array:
    """Return e**x for float32 x of at most 0, in the graph."""
    return power_of_two(x * math.log2(math.e)) if device().traits.exp_is_slow else mx.exp(x)


def merge_weight(x: mx.array) -> mx.array:
    """Return e**x, where x is the maximum of a part minus that of all: -1e30 if the part is fully masked."""
    return weight(mx.maximum(x, _FARTHEST))


def goes_to_host(scores: int) -> bool:
    """Return whether NumPy computes the softmax of this number of scores."""
    return device().traits.exp_is_slow and scores >= _MANY_SCORES


def softmax_parts(scores: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Return the maximum over the last axis, e**(scores - maximum), and its sum; float32. `scores` must
    belong to the caller and must not be used afterwards: large ones are overwritten."""
    if goes_to_host(scores.size):
        return _on_host(scores)
    most = mx.max(scores, axis=-1, keepdims=True)
    weights = weight(scores - most)
    return most, weights, mx.sum(weights, axis=-1, keepdims=True)


def _on_host(scores: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    device().waits += 1
    mx.eval(scores)
    numbers = np.array(scores, copy=False)  # MLX's own memory, as its documentation promises, or an error.
    most = numbers.max(axis=-1, keepdims=True)
    np.subtract(numbers, most, out=numbers)
    np.exp(numbers, out=numbers)
    return mx.array(most), scores, mx.array(numbers.sum(axis=-1, keepdims=True))
