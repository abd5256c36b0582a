"""Tests at load whether a model's attention lets rows share keys and values in place.

Families differ in what they do between the cache and the softmax: MLA adds part of the scores itself, some
call their own kernel, some pass a window. A model whose results differ stays on the ordinary path. One row of
the test shares nothing: for it the run is fully masked, and the others' private parts are padded.

What rounding makes of a difference depends on the model: with 4-bit weights a last bit of one layer was a
tenth of the largest logit, in float16 a few thousandths. So the tolerance is the model's own: how far its
logits move when each cached key and value is rounded another way. In-place attention measured 0.4 to 1.6 of
that, a run of which one token is masked wrongly 7 times and more (four layers, random weights).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Path, Run
from scheduler.engine.mlx.kv.batch_rows import RowStart
from scheduler.engine.mlx.kv.kv_segment import KvSegment

_PREFIX = [3, 5, 7, 11, 13, 17]
_SHORT_PREFIX = [3, 5, 7, 11]
_RESTS = ([2, 19, 4], [23, 6, 29], [8, 31, 10])
_SHARING_ROWS = 2
_SHARING = "prefixes in place"
_LEAST_TOLERANCE = 1e-3
"""Fraction of the largest logit: the effect of another order of summation in float32."""
_TOLERANCE = 4.0
"""How many times the model's own rounding."""
_ROUNDINGS = 4
_RESOLUTION = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}


def sharing_fault(model: Any) -> str | None:
    """Why rows cannot share in place. None: two rows behind one prefix, and a third beside them, get the same
    logits in prefill and in decode with copies and in place."""
    try:
        apart, together = _logits(model, in_place=False), _logits(model, in_place=True)
        mx.eval(apart, together)
    except Exception as error:  # Models raise many types for a cache that they do not expect.
        return f"{_SHARING}: {type(error).__name__}: {error}"
    scale = max(float(mx.max(mx.abs(apart))), 1e-6)
    difference = _difference(apart, together)
    if difference <= _LEAST_TOLERANCE * scale:
        return None
    rounding = max(_difference(apart, _logits(model, False, number)) for number in range(1, _ROUNDINGS + 1))
    if not difference <= _TOLERANCE * rounding:  # NaN is a difference.
        return (
            f"{_SHARING}: logits differ by {difference:.3g} of {scale:.3g}, of which rounding {rounding:.3g}"
        )
    return None


def _difference(some: mx.array, others: mx.array) -> float:
    """Of the row that differs most, at its median position: rounding may send a token to another expert,
    which changes one position much, and a wrong mask all that follow."""
    by_position = mx.max(mx.abs(some.astype(mx.float32) - others.astype(mx.float32)), axis=-1)
    middle = mx.sort(by_position, axis=1)[:, by_position.shape[1] // 2]
    return float(mx.max(middle)) + 0.0 * float(mx.sum(by_position))  # NaN and infinity at any position count.


def _logits(model: Any, in_place: bool, rounding: int = 0) -> mx.array:
    """(rows, tokens, vocabulary) after the prefixes: of a chunk, then of one token. `rounding`: a seed by
    which the prefixes' keys and values are rounded another way; 0: as they are."""
    long, short = (_rounded(_after(model, prefix), rounding) for prefix in (_PREFIX, _SHORT_PREFIX))
    batch = [_merged(*layers, in_place) for layers in zip(long, short, strict=True)]
    rests = mx.array(_RESTS)
    chunk = model(rests[:, :-1], cache=batch)
    token = model(rests[:, -1:], cache=batch)
    return mx.concatenate([chunk, token], axis=1)


def _after(model: Any, prefix: list[int]) -> list[Any]:
    caches: list[Any] = make_prompt_cache(model)
    model(mx.array([prefix]), cache=caches)
    return caches


def _rounded(layers: list[Any], seed: int) -> list[Any]:
    """Move each key and value by up to one unit in its last place."""
    keys = mx.random.split(mx.random.key(seed), 2 * len(layers))
    for place, layer in enumerate(layers if seed else ()):
        if type(layer) is KVCache:
            layer.keys = _moved(layer.keys, keys[2 * place])
            layer.values = _moved(layer.values, keys[2 * place + 1])
    return layers


def _moved(array: mx.array, key: mx.array) -> mx.array:
    by = _RESOLUTION.get(array.dtype, 0.0) * mx.random.uniform(-1.0, 1.0, array.shape, key=key)
    return (array.astype(mx.float32) * (1.0 + by)).astype(array.dtype)


def _merged(long: Any, short: Any, in_place: bool) -> Any:
    if type(long) is not KVCache:
        return long.merge([*[long] * _SHARING_ROWS, short])
    path, beside = _path(long, _PREFIX), _path(short, _SHORT_PREFIX)
    start = _start(path, ()) if in_place else _start((), path)
    return start.merge([*[start] * _SHARING_ROWS, _start((), beside)])


def _start(shared: Path, copied: Path) -> RowStart:
    return RowStart(0, BatchGeometry((shared,), (0,)), copied, 0)


def _path(layer: KVCache, prefix: list[int]) -> Path:
    """Each layer has segments of its own here, for itself alone."""
    return (Run(KvSegment([layer.keys_and_values()], len(prefix)), len(prefix)),)
