"""The gate of the feed-forward layers, `silu(gate) * x`, where MLX's exponential is slow (`softmax.py`).

MLX makes one libm call per number, 0.5 ms for 32 rows of 1,152, which is best for few. In the graph, from the
bits of a power of two, it takes a fourth of that; on the host, by NumPy, a fourteenth, but the step waits.
With the 13M benchmark model a chunk of 128 tokens takes 0.8 of the time, a step of 32 rows 0.92.
`upstream/apply.py` makes models call it.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np

from scheduler.engine.mlx.cpu.softmax import FEW, power_of_two

_MANY = 1 << 16
"""Numbers from which on NumPy computes the gate: more than a decode step has, because its graph is built
while the previous step is computed."""


def swiglu(gate: mx.array, x: mx.array) -> mx.array:
    """Return `silu(gate) * x`, equal to mlx-lm's within 1e-6 in float32. Both arrays have the result's
    shape."""
    if gate.size >= _MANY and gate.dtype == x.dtype == mx.float32:
        return _on_host(gate, x)
    if gate.size <= FEW:
        return mx.sigmoid(gate) * gate * x
    # Beyond 126 float32 overflows, and the gate is 0.
    power = power_of_two(mx.minimum(gate.astype(mx.float32) * -math.log2(math.e), 126.0))
    return gate * (1.0 / (1.0 + power)).astype(gate.dtype) * x


def _on_host(gate: mx.array, x: mx.array) -> mx.array:
    answer = mx.negative(gate)
    mx.eval(answer, gate, x)
    numbers = np.array(answer, copy=False)  # MLX's own memory, as its documentation promises, or an error.
    with np.errstate(over="ignore"):  # Infinite: the gate is 0.
        np.exp(numbers, out=numbers)
    numbers += 1.0
    np.divide(np.array(gate, copy=False), numbers, out=numbers)
    numbers *= np.array(x, copy=False)
    return answer
