"""The exponential of a softmax, as the device computes it best: `weight(x)` is e**(x / UNIT).

MLX's exp is one libm call a number on x86 CPUs: 11 ns, nine tenths of attention over a long prefix (786,432
scores: two matrix products 1.6 ms, exp 9.0 ms). There we take 2**x from its bits and a polynomial, in 14
vectorised operations: 3.4 ms. Elsewhere (Metal, CUDA, Apple's CPUs) MLX's own is used; those were not run.
"""

from __future__ import annotations

import math
import platform

import mlx.core as mx

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
"""1.5 * 2**23: added to a float32, it leaves the nearest integer in the lowest bits."""
_LEAST = -126.0
"""2**-126 is the smallest normal float32: nothing, for a weight."""


def power_of_two(x: mx.array) -> mx.array:
    """2**x for float32 x of at most 127."""
    x = mx.maximum(x, _LEAST)
    shifted = x + _ROUNDING
    fraction = x - (shifted - _ROUNDING)
    power = mx.full((), _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        power = power * fraction + coefficient
    exponent = mx.left_shift(shifted.view(mx.int32), 23) + mx.array(127 << 23, mx.int32)
    return power * exponent.view(mx.float32)


IS_SLOW = mx.default_device() == mx.cpu and platform.machine() in ("x86_64", "AMD64")
"""Whether MLX's own exponential is the bottleneck here."""

UNIT = math.log2(math.e) if IS_SLOW else 1.0
weight = power_of_two if IS_SLOW else mx.exp
