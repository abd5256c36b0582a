"""Each operation that a model or the engine asks MLX for: right or wrong, and the host's time for it.

A back end may lack an operation, or a case of it, and says so only when it is computed. The answers are held
to MLX's own CPU; the first time of each shows what is compiled at first use.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from loadtests.device.finding import Figure, Finding, attempt
from scheduler.engine.mlx.cpu.softmax import merge_weight
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.sampling.draw import gumbel
from scheduler.engine.mlx.shared_attention import SharedGroup, shared_attention

_ASKED = ("name", "driver_version", "memory.total", "compute_cap", "power.limit", "clocks.max.sm")
_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_ROUNDING = {"float32": 3e-3, "bfloat16": 2.0**-4, "float16": 2.0**-7}
"""As a part of the largest number; float32 may be TF32's."""
_FLOAT32_ON_A_CPU = ("gathered product",)
"""Which MLX's CPU has for float32 only; there Penstock's weights are."""
_QUICK = ("mask array", "sinks", "run", "batches", "40 rows with affine 4", "mxfp4")
_LONG = ("gathered", "scatter", "largest", "product of 40 rows", "experts")
"""CUDA compiles each of these when it is first wanted: 5 to 22 s on an H100's host."""
_HEADS = (64, 96, 128, 256)
_MODES = {"affine 4": (4, 64, "affine"), "affine 8": (8, 64, "affine"), "affine 6": (6, 64, "affine")}
_MODES |= {"mxfp4": (4, 32, "mxfp4"), "mxfp8": (8, 32, "mxfp8"), "nvfp4": (4, 16, "nvfp4")}
_MASKED = -1e30


def findings(quick: bool, seconds: float) -> Iterator[Finding]:
    """Hold each operation of each dtype, those that compile for long last, as far as the seconds go."""
    started = time.perf_counter()
    yield attempt("driver", _driver)
    left_out = []
    for late in (False, True):
        for dtype in list(_DTYPES)[: 2 if quick else None]:
            computed = _DTYPES[dtype]
            exact = _operations(computed, mx.float32)
            for name, compute in _operations(computed, computed).items():
                title = f"{name}, {dtype}"
                if late != name.startswith(_LONG) or (quick and not _is_quick(name)):
                    continue
                if device().traits.kind == "cpu" and name in _FLOAT32_ON_A_CPU and dtype != "float32":
                    continue
                if time.perf_counter() - started > seconds:
                    left_out.append(title)
                    continue
                yield attempt(title, partial(_held, title, compute, exact[name], _ROUNDING[dtype]))
    if left_out:
        yield Finding("left out", "measured", {"operations": len(left_out)}, ", ".join(left_out))


def _is_quick(name: str) -> bool:
    if name.startswith(("attention", "product of", "experts")) and not name.endswith(_QUICK):
        return False
    return not name.startswith("attention, ") or "head 64," in name


def _driver() -> Finding:
    if (program := shutil.which("nvidia-smi")) is None:
        return Finding("driver", "measured", {"mlx_default_device": str(mx.default_device())})
    query = [program, f"--query-gpu={','.join(_ASKED)}", "--format=csv,noheader"]
    asked = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
    figures: dict[str, Figure] = dict(zip(_ASKED, (one.strip() for one in asked[0].split(",")), strict=True))
    return Finding("driver", "measured", figures)


def _held(
    title: str, compute: Callable[[], mx.array], exact: Callable[[], mx.array], tolerance: float
) -> Finding:
    """`host_ms`: building the graph and handing it to the device."""
    started = time.perf_counter()
    mx.eval(compute())
    first, started = time.perf_counter() - started, time.perf_counter()
    found = compute()
    submit: Callable[..., None] = mx.async_eval
    submit(found)
    host = time.perf_counter() - started
    mx.eval(found)
    again = time.perf_counter() - started
    with mx.stream(mx.cpu):
        expected = np.array(exact().astype(mx.float32))
    error = float(np.max(np.abs(np.array(found.astype(mx.float32)) - expected)))
    figures = {
        "error_of_largest": error / max(1e-6, float(np.max(np.abs(expected)))),
        "tolerance": tolerance,
        "first_ms": 1000 * first,
        "host_ms": 1000 * host,
        "again_ms": 1000 * again,
    }
    # A NaN is in no order.
    return Finding(title, "right" if figures["error_of_largest"] <= tolerance else "wrong", figures)


def _operations(rounded: mx.Dtype, dtype: mx.Dtype) -> Mapping[str, Callable[[], mx.array]]:
    """Return what the engine and mlx-lm's models compute, in `dtype`, of numbers that `rounded` has and that
    depend on no device."""

    def made(*shape: int, seed: int = 1) -> mx.array:
        numbers = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        return mx.array(numbers).astype(rounded).astype(dtype)

    def attention(size: int, queries: int, mask: str, sinks: bool = False) -> mx.array:
        q, k, v = made(2, 4, queries, size), made(2, 2, 300, size, seed=2), made(2, 2, 300, size, seed=3)
        padded = mx.arange(300)[None, :] >= mx.array([[0], [7]])
        chosen: mx.array | str | None = {"none": None, "causal": "causal"}.get(mask)
        if mask == "array":
            chosen = padded[:, None, None]
        sink = made(4) if sinks else None
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=size**-0.5, mask=chosen, sinks=sink)

    def shared_run() -> mx.array:
        """Grouped queries behind a run that two of three rows share; one row's own keys are masked."""
        mask = mx.ones((3, 1, 2, 50), mx.bool_)
        mask[0] = False
        run = SharedGroup(made(1, 2, 700, 64, seed=4), made(1, 2, 700, 64, seed=5), (0, 1), mx.array([0, 1]))
        own = made(3, 2, 50, 64, seed=2), made(3, 2, 50, 64, seed=3)
        return shared_attention(made(3, 6, 2, 64), *own, [run], 64**-0.5, mask)

    multiply: Callable[..., mx.array] = mx.quantized_matmul
    gather: Callable[..., mx.array] = mx.gather_qmm
    unpack: Callable[..., mx.array] = mx.dequantize

    def packed(mode: str, *shape: int) -> tuple[Any, dict[str, Any]]:
        """Return packed numbers, the same for both types, and how they are packed."""
        bits, group, kind = _MODES[mode]
        with mx.stream(mx.cpu):
            numbers = mx.array(np.random.default_rng(2).standard_normal(shape).astype(np.float32))
            arrays: Any = mx.quantize(numbers.astype(rounded), group, bits, mode=kind)
            mx.eval(arrays)
        return arrays, {"group_size": group, "bits": bits, "mode": kind}

    def quantized(mode: str, rows: int, transpose: bool = True) -> mx.array:
        arrays, how = packed(mode, 256, 256)
        x = made(rows, 256)
        if dtype == rounded:
            return multiply(x, *arrays, transpose=transpose, **how)
        weights = unpack(*arrays, **how, dtype=dtype)
        return x @ (weights.T if transpose else weights)

    def experts(mode: str) -> mx.array:
        arrays, how = packed(mode, 4, 128, 256)
        x, chosen = made(3, 1, 1, 256), mx.array([[0, 3], [2, 2], [1, 0]])
        if dtype == rounded:
            return gather(x, *arrays, rhs_indices=chosen, transpose=True, **how)
        return x @ unpack(*arrays, **how, dtype=dtype)[chosen].swapaxes(-1, -2)

    def scattered() -> mx.array:
        rows = made(4, 2, 50, 64)
        rows[mx.arange(4)[:, None], :, mx.array([[3], [9], [0], [49]])] = made(4, 1, 2, 64, seed=2)
        return mx.put_along_axis(rows, mx.zeros((4, 2, 1, 64), mx.int32), mx.array(0, dtype), axis=2)

    def octets() -> mx.array:
        words = mx.view(mx.quantize(made(64, 128).astype(mx.float32), 64, 8)[0], mx.uint8)
        return ((words & 15) + (words >> 4)).astype(mx.float32)

    def largest() -> mx.array:
        places = mx.argpartition(-made(3, 4000), 20, axis=-1)[..., :20]
        return mx.sort(mx.take_along_axis(made(3, 4000), places, axis=-1), axis=-1)

    def rotary() -> mx.array:
        places, x = mx.array([3, 900]), made(2, 4, 3, 64)
        return mx.fast.rope(x, 64, traditional=False, base=1e4, scale=1.0, offset=places)

    kernels: dict[str, Callable[[], mx.array]] = {
        "product": lambda: made(70, 130) @ made(130, 90, seed=2),
        "product of one row": lambda: made(1, 130) @ made(130, 90, seed=2),
        "product of batches": lambda: made(3, 2, 9, 64) @ made(3, 2, 64, 40, seed=2),
        "gathered product": lambda: mx.gather_mm(
            made(3, 1, 64), made(4, 64, 40, seed=2), rhs_indices=mx.array([0, 3, 3])
        ),
        "softmax": lambda: mx.softmax(made(5, 1000), axis=-1, precise=True),
        "logsumexp": lambda: mx.logsumexp(made(5, 8192), axis=-1),
        "RMS norm": lambda: mx.fast.rms_norm(made(5, 4096), made(4096, seed=2), 1e-6),
        "layer norm": lambda: mx.fast.layer_norm(made(5, 256), made(256), made(256), 1e-5),
        "rotary, offsets by row": rotary,
        "scatter": scattered,
        "sort": lambda: mx.sort(made(3, 4000), axis=-1),
        "largest numbers": largest,
        "sums along an axis": lambda: mx.cumsum(made(3, 600).astype(mx.float32), axis=-1),
        "convolution by channel": lambda: mx.conv1d(made(2, 40, 32), made(32, 4, 1, seed=2), groups=32),
        "norm": lambda: mx.linalg.norm(made(5, 300), axis=-1),
        "octets of packed words": octets,
        # A fast exponential of it may be NaN: the check at load refuses sharing then.
        "weight of a masked score": lambda: merge_weight(mx.array([_MASKED, 0.0])),
        # If they were others, a seed's answer would depend on the device.
        "random numbers of seeded rows": lambda: gumbel([seed << 32 | 7 * seed for seed in range(16)], 4096),
        "attention over a shared run": shared_run,
        "attention with sinks": lambda: attention(64, 1, "none", sinks=True),
        "product with affine 4, not transposed": lambda: quantized("affine 4", 9, transpose=False),
    }
    for size in _HEADS:
        for queries, mask in ((1, "none"), (1, "array"), (40, "causal"), (40, "array")):
            name = f"attention, {queries} queries, head {size}, mask {mask}"
            kernels[name] = partial(attention, size, queries, mask)
    for mode in _MODES:
        for rows in (1, 3, 40):
            kernels[f"product of {rows} rows with {mode}"] = partial(quantized, mode, rows)
        kernels[f"experts in {mode}"] = partial(experts, mode)
    return kernels
