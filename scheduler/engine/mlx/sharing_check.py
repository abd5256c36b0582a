"""Tests at load whether a model's attention lets rows share keys and values in place.

Families differ in what they do between the cache and the softmax: MLA adds part of the scores itself, some
call their own kernel, some pass a window. A model whose results differ stays on the ordinary path. One row of
the test shares nothing: for it the run is fully masked, and the others' private parts are padded.

What rounding makes of a difference depends on the model: with 4-bit weights a last bit of one layer was a
tenth of the largest logit, in float16 a few thousandths. So the tolerance is the model's own: how far its
logits move when each cached key and value is rounded another way. The median of three prompts measured at
most 1.1 times that in place, and 5.6 times and more where one token of a run was left out (nine families of
four layers, in 16 and 4 bits).
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Path, Run
from scheduler.engine.mlx.kv.batch_rows import RowStart
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.shared.device_errors import is_device_error

_PREFIX = [3, 5, 7, 11, 13, 17]
_SHORT_PREFIX = [3, 5, 7, 11]
_RESTS = ([2, 19, 4], [23, 6, 29], [8, 31, 10])
_SHARING_ROWS = 2
_OTHER_WORDS = (0, 32, 64)
"""Added to each token. Rounding may send a token to another expert, which changes its logits much: where not
all is float32, a difference counts if it shows for two of these. A fault of the module does."""
_MAJORITY = 2
_LEAST_TOLERANCE = 1e-3
"""Fraction of the largest logit: the effect of another order of summation in float32."""
_TOLERANCE = 3.0
"""How many times the model's own rounding a difference may be, where not all is float32. `load_check.py`,
where prefixes in place run for real, finds smaller ones that are wrong."""
_ROUNDINGS = 3
_RESOLUTION = {mx.bfloat16: 2.0**-8, mx.float16: 2.0**-11}
_TF32_RESOLUTION = 2.0**-11
_COARSE = {mx.bfloat16, mx.float16, mx.uint8, mx.uint32}
"""Types of 16-bit parameters, and of packed ones."""


def computes_in_float32(model: Any) -> bool:
    """Return whether rounding is float32's all the way. The logits' type does not say: some models convert
    them, and float32 weights beside packed embeddings widen what was rounded before."""
    return has_float32_weights(model) and device().float32 == "float32"


def has_float32_weights(model: Any) -> bool:
    """Return whether no parameter is of 16 bits or packed."""
    flat: Any = tree_flatten(model.parameters())
    return not any(value.dtype in _COARSE for _, value in flat)


def shares_in_place(model: Any) -> bool:
    """Return whether in-place sharing gives the same logits as copies: for two rows behind one prefix and a
    third beside them, in prefill and in decode."""
    exact, faults = computes_in_float32(model), 0
    needed = 1 if exact else _MAJORITY
    for tried, words in enumerate(_OTHER_WORDS, 1):
        try:
            faults += _differs(model, words, exact)
        except Exception as error:  # Models raise many types for a cache that they do not expect.
            if is_device_error(error):
                raise
            return False
        if needed in (faults, tried - faults):
            break
    return faults < needed


def _differs(model: Any, words: int, exact: bool) -> bool:
    """Return whether the logits differ with prompts whose tokens are moved by `words`."""
    long, short = (_after(model, [token + words for token in run]) for run in (_PREFIX, _SHORT_PREFIX))
    apart, together = (_logits(model, words, long, short, in_place) for in_place in (False, True))
    mx.eval(apart, together)
    scale = max(float(mx.max(mx.abs(apart))), 1e-6)
    difference = _difference(apart, together)
    if difference <= _LEAST_TOLERANCE * scale:
        return False
    rounding = 0.0
    for seed in () if exact else range(1, _ROUNDINGS + 1):
        rounded = _logits(model, words, long, short, in_place=False, seed=seed)
        rounding = max(rounding, _difference(apart, rounded))
    return not difference <= _TOLERANCE * rounding  # NaN is a difference.


def _difference(some: mx.array, others: mx.array) -> float:
    """Return the largest row difference, measured at the median position: rounding may send a token to
    another expert, which changes one position much, and a wrong mask all that follow. NaN if anything is not
    finite."""
    by_position = mx.max(mx.abs(some.astype(mx.float32) - others.astype(mx.float32)), axis=-1)
    middle = mx.sort(by_position, axis=1)[:, by_position.shape[1] // 2]
    return float(mx.max(middle)) + 0.0 * float(mx.sum(by_position))


def _logits(
    model: Any, words: int, long: list[Any], short: list[Any], in_place: bool, seed: int = 0
) -> mx.array:
    """Return the logits after the prefixes, (rows, tokens, vocabulary): of a chunk, then of one token.
    `long`, `short`: caches with the prefixes, of which batches take copies. `seed` rounds them another way; 0
    leaves them as they are."""
    keys = mx.random.split(mx.random.key(seed), len(long)) if seed else [None] * len(long)
    batch = [_merged(*layers, in_place) for layers in zip(long, short, keys, strict=True)]
    rests = mx.array(_RESTS) + words
    chunk = model(rests[:, :-1], cache=batch)
    token = model(rests[:, -1:], cache=batch)
    return mx.concatenate([chunk, token], axis=1)


def _after(model: Any, prefix: list[int]) -> list[Any]:
    caches: list[Any] = make_prompt_cache(model)
    mx.eval(model(mx.array([prefix]), cache=caches))
    return caches


def _merged(long: Any, short: Any, key: mx.array | None, in_place: bool) -> Any:
    if type(long) is not KVCache:
        return long.merge([*[long] * _SHARING_ROWS, short])
    path, beside = _path(long, _PREFIX, key), _path(short, _SHORT_PREFIX, key)
    start = _start(path, ()) if in_place else _start((), path)
    return start.merge([*[start] * _SHARING_ROWS, _start((), beside)])


def _start(shared: Path, copied: Path) -> RowStart:
    return RowStart(0, BatchGeometry((shared,), (0,)), copied, 0)


def _path(layer: KVCache, prefix: list[int], key: mx.array | None) -> Path:
    """Return one layer's run. Here each layer has a segment of its own."""
    keys, values = (_rounded(half, key) for half in layer.keys_and_values())
    return (Run(KvSegment([(keys, values)], len(prefix)), len(prefix)),)


def _rounded(array: mx.array, key: mx.array | None) -> mx.array:
    """Return each number, moved by up to one unit in its last place."""
    resolution = _RESOLUTION.get(array.dtype)
    if array.dtype == mx.float32 and device().float32 == "tf32":
        resolution = _TF32_RESOLUTION
    if key is None or resolution is None:
        return array
    by = resolution * mx.random.uniform(-1.0, 1.0, array.shape, key=key)
    return (array.astype(mx.float32) * (1.0 + by)).astype(array.dtype)
