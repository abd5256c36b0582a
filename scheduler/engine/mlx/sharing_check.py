"""Tests at load whether a model's attention lets rows share keys and values in place.

Families differ in what they do between the cache and the softmax: MLA adds part of the scores itself, some
call their own kernel, some pass a window. A model whose results differ stays on the ordinary path. One row of
the test shares nothing: for it the run is fully masked, and the others' private parts are padded.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import KVCache, make_prompt_cache

from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Path, Run
from scheduler.engine.mlx.kv.batch_rows import RowStart
from scheduler.engine.mlx.kv.kv_segment import KvSegment

_PREFIX = [3, 5, 7, 11, 13, 17]
_SHORT_PREFIX = [3, 5, 7, 11]
_RESTS = ([2, 19, 4], [23, 6, 29], [8, 31, 10])
_SHARING_ROWS = 2
_OTHER_WORDS = (0, 32, 64)
"""Added to each token. Rounding may send a token to another expert, which changes its logits much: where not
all is float32, a difference counts if it shows for all of these. A fault of the module does."""
_SHARING = "prefixes in place"
_TOLERANCE = 1e-3
_TOLERANCE_COARSE = 0.1
"""Fraction of the largest logit: the effect of another order of summation. Where not all is float32, that of
the worst of some thousand logits: tiny models in 4 bits were seen to differ by 0.09, and faults by 0.2 to
0.5. What is less and wrong differs in `load_check.py`, where prefixes in place run for real."""
_COARSE = {mx.bfloat16, mx.float16, mx.uint8, mx.uint32}
"""Types of 16-bit parameters, and of packed ones."""


def computes_in_float32(model: Any) -> bool:
    """Whether rounding is float32's all the way. The logits' type does not say: some models convert them, and
    float32 weights beside packed embeddings widen what was rounded before."""
    flat: Any = tree_flatten(model.parameters())
    return not any(value.dtype in _COARSE for _, value in flat)


def sharing_fault(model: Any) -> str | None:
    """Why rows cannot share in place. None: two rows behind one prefix, and a third beside them, get the same
    logits in prefill and in decode with copies and in place."""
    exact = computes_in_float32(model)
    fault = None
    for words in _OTHER_WORDS:
        try:
            long, short = (
                _after(model, [token + words for token in run]) for run in (_PREFIX, _SHORT_PREFIX)
            )
            apart, together = (_logits(model, words, long, short, in_place) for in_place in (False, True))
            mx.eval(apart, together)
            scale = max(float(mx.max(mx.abs(apart))), 1e-6)
            difference = float(mx.max(mx.abs(apart - together)))
            if difference <= (_TOLERANCE if exact else _TOLERANCE_COARSE) * scale:
                return None
        except Exception as error:  # Models raise many types for a cache that they do not expect.
            return f"{_SHARING}: {type(error).__name__}: {error}"
        fault = fault or f"{_SHARING}: logits differ by {difference:.3g} of {scale:.3g}"
        if exact:
            break
    return fault


def _logits(model: Any, words: int, long: list[Any], short: list[Any], in_place: bool) -> mx.array:
    """(rows, tokens, vocabulary) after the prefixes: of a chunk, then of one token. `long`, `short`: caches
    with the prefixes, of which batches take copies."""
    batch = [_merged(*layers, in_place) for layers in zip(long, short, strict=True)]
    rests = mx.array(_RESTS) + words
    chunk = model(rests[:, :-1], cache=batch)
    token = model(rests[:, -1:], cache=batch)
    return mx.concatenate([chunk, token], axis=1)


def _after(model: Any, prefix: list[int]) -> list[Any]:
    caches: list[Any] = make_prompt_cache(model)
    model(mx.array([prefix]), cache=caches)
    return caches


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
