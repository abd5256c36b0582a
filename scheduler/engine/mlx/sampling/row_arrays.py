"""Arrays with an entry for each row of a batch."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def column(values: Sequence[float]) -> mx.array:
    """Return the values as (rows, 1) float32."""
    return mx.array(list(values), dtype=mx.float32)[:, None]


def put(array: mx.array, index: mx.array, values: mx.array) -> mx.array:
    """Return a copy of `array` with rows replaced."""
    array = array[:]
    array[index] = values
    return array
