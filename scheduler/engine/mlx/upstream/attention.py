"""Models' attention behind shared prefixes, and that of many scores where MLX's exponential is slow.

It replaces mlx-lm 0.32.2's `scaled_dot_product_attention` (`models/base.py`), which knows one row of keys and
values for each query. Models import the function by name, so no cache of ours could attend by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from scheduler.engine.mlx.cpu.softmax import FEW
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.mlx.shared_attention import shared_attention

_FEW_QUERIES = 16
"""Most queries of a row in a step with drafts. Longer chunks are for the fused kernel: all their scores would
be in memory, and unpacking takes little of their time."""
ordinary: Callable[..., mx.array] = base.scaled_dot_product_attention


def dispatch(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """Return the attention, by our code or mlx-lm's. `cache.groups` are the runs that its rows share;
    `cache.packed` gives the own keys and values of rows that pack them."""
    groups = getattr(cache, "groups", ())
    packed = cache.packed(keys, values) if isinstance(cache, BatchRows) else None
    if packed is not None and (groups or device().traits.exp_is_slow or queries.shape[2] <= _FEW_QUERIES):
        return shared_attention(queries, *packed, groups, scale, _array(mask, queries, keys), sinks)
    ours = device().traits.exp_is_slow and _scores(queries, keys) > FEW and not hasattr(cache, "bits")
    if groups or ours:
        return shared_attention(queries, keys, values, groups, scale, _array(mask, queries, keys), sinks)
    return ordinary(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def _scores(queries: mx.array, keys: mx.array) -> int:
    rows, heads, length, _ = queries.shape
    return rows * heads * length * keys.shape[2]


def _array(mask: Any, queries: mx.array, keys: mx.array) -> mx.array | None:
    if isinstance(mask, str):
        mask = base.create_causal_mask(queries.shape[2], keys.shape[2] - queries.shape[2])
    array: mx.array | None = mask
    return array
