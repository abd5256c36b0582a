"""Single operations that our own code relies on, on this device, against NumPy in float64 or MLX's CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import mlx.core as mx
import numpy as np

from loadtests.device.finding import Finding, attempt
from scheduler.engine.mlx.cpu.softmax import merge_weight, power_of_two, softmax_parts
from scheduler.engine.mlx.cpu.swiglu import swiglu
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.sampling.draw import gumbel
from scheduler.engine.mlx.shared_attention import SharedGroup, shared_attention

_MASKED = -1e30
_Exact: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def findings() -> Iterator[Finding]:
    yield attempt("a masked score weighs nothing", _masked)
    yield attempt("power of two from bits", _power)
    yield attempt("softmax over many scores", _softmax)
    yield attempt("gate of the feed-forward layers", _gate)
    yield attempt("products of float32", _product)
    yield attempt("random numbers of seeded rows are the CPU's", _random)
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        name = f"attention over a shared run, {str(dtype).removeprefix('mlx.core.')}"
        yield attempt(name, lambda: _attention(name, dtype))  # noqa: B023  # Called at once.


def _held(name: str, error: float, tolerance: float) -> Finding:
    return Finding(name, "right" if error <= tolerance else "wrong", {"error": error, "tolerance": tolerance})


def _masked() -> Finding:
    """G5: a fast exponential of -1e30 may be NaN; the check at load refuses sharing then."""
    weights = mx.exp(mx.array([_MASKED, 0.0]))
    merged = merge_weight(mx.array([_MASKED, 0.0]))
    mx.eval(weights, merged)
    error = abs(float(weights[0])) + abs(float(merged[0])) + abs(float(weights[1]) - 1.0)
    return _held("a masked score weighs nothing", error, 1e-30)


def _power() -> Finding:
    x = np.linspace(-99, 20, 100_001).astype(np.float32)
    found = np.array(power_of_two(mx.array(x))).astype(np.float64)
    error = float(np.max(np.abs(found / np.exp2(x.astype(np.float64)) - 1)))
    return _held("power of two from bits", error, 1e-6)


def _softmax() -> Finding:
    scores = (20 * np.random.default_rng(1).standard_normal((4, 300, 300))).astype(np.float32)
    scores[..., 280:] = _MASKED
    exact = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    _, weights, total = (np.array(part) for part in softmax_parts(mx.array(scores)))
    error = max(
        float(np.max(np.abs(weights - exact))),
        float(np.max(np.abs(total / exact.sum(axis=-1, keepdims=True) - 1))),
    )
    return _held("softmax over many scores", error, 1e-5)


def _gate() -> Finding:
    gate, x = (np.random.default_rng(seed).normal(0, 5, (400, 300)).astype(np.float32) for seed in (2, 3))
    exact = gate / (1 + np.exp(-gate.astype(np.float64))) * x
    found = np.array(swiglu(mx.array(gate), mx.array(x)))
    error = float(np.max(np.abs(found - exact) / np.maximum(np.abs(exact), 1e-3)))
    return _held("gate of the feed-forward layers", error, 1e-4)


def _product() -> Finding:
    """The error is 1e-6 in float32; TF32, which an M5 and CUDA have, makes it 1e-3."""
    left, right = (np.random.default_rng(seed).standard_normal((512, 512)) for seed in (4, 5))
    left, right = left.astype(np.float32), right.astype(np.float32)
    exact = left.astype(np.float64) @ right.astype(np.float64)
    found = np.array(mx.array(left) @ mx.array(right))
    error = float(np.sqrt(np.mean(np.square(found - exact)) / np.mean(np.square(exact))))
    tolerance = 1e-5 if device().float32 == "float32" else 2e-3
    return _held("products of float32", error, tolerance)


def _random() -> Finding:
    """If they were others, a seed's answer would depend on the device. Their bits are equal, their logarithms
    nearly."""
    keys = [seed << 32 | 7 * seed for seed in range(16)]
    here = np.array(gumbel(keys, 4096))
    with mx.stream(mx.cpu):
        there = gumbel(keys, 4096)
        mx.eval(there)
    return _held(
        "random numbers of seeded rows are the CPU's", float(np.max(np.abs(here - np.array(there)))), 1e-4
    )


def _attention(name: str, dtype: mx.Dtype) -> Finding:
    """Grouped queries behind a run that two of three rows share; one row's own keys are masked as a whole."""
    rows, kv_heads, repeats, size, run, own = 3, 2, 3, 64, 700, 50
    made = [
        mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
        for seed, shape in enumerate(
            [
                (rows, kv_heads * repeats, 2, size),
                *[(rows, kv_heads, own, size)] * 2,
                *[(1, kv_heads, run, size)] * 2,
            ]
        )
    ]
    queries, keys, values, run_keys, run_values = made
    mask = mx.ones((rows, 1, 2, own), mx.bool_)
    mask[0] = False
    group = SharedGroup(run_keys, run_values, (0, 1), mx.array([0, 1]))
    found = shared_attention(queries, keys, values, [group], size**-0.5, mask)
    wide = [np.array(array.astype(mx.float32)).astype(np.float64) for array in made]
    error = 0.0
    for row in range(rows):
        parts = [(wide[3][0], wide[4][0])] if row < 2 else []
        parts += [(wide[1][row], wide[2][row])] if row else []
        exact = _exact(wide[0][row], parts, repeats)
        mine = np.array(found[row].astype(mx.float32)).astype(np.float64)
        error = max(error, float(np.max(np.abs(mine - exact))) / float(np.max(np.abs(exact))))
    return _held(name, error, {mx.float32: 1e-4, mx.bfloat16: 2.0**-6, mx.float16: 2.0**-9}[dtype])


def _exact(queries: _Exact, parts: Sequence[tuple[_Exact, _Exact]], repeats: int) -> _Exact:
    """Return the attention of one row, (heads, queries, size), by one softmax over all parts."""
    keys = np.repeat(np.concatenate([part[0] for part in parts], axis=1), repeats, axis=0)
    values = np.repeat(np.concatenate([part[1] for part in parts], axis=1), repeats, axis=0)
    scores = queries @ keys.swapaxes(-1, -2) * queries.shape[-1] ** -0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    answer: _Exact = (weights / weights.sum(axis=-1, keepdims=True)) @ values
    return answer
