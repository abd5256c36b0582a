"""Models' attention behind shared prefixes, and everywhere where MLX's exponential is slow.

mlx-lm 0.32.2's `models/base.py`, `scaled_dot_product_attention`: it knows one row of keys and values for each
query. Models import the function by name, so no cache of ours could attend by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import base

from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.shared_attention import shared_attention
from scheduler.engine.mlx.upstream.replacement import replace

_ordinary: Callable[..., mx.array] = base.scaled_dot_product_attention


def _dispatch(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """`cache.groups` are the runs that its rows share."""
    groups = getattr(cache, "groups", ())
    if groups or (device().traits.exp_is_slow and not hasattr(cache, "bits")):
        if isinstance(mask, str):
            mask = base.create_causal_mask(queries.shape[2], keys.shape[2] - queries.shape[2])
        return shared_attention(queries, keys, values, groups, scale, mask, sinks)
    return _ordinary(queries, keys, values, cache=cache, scale=scale, mask=mask, sinks=sinks)


def take_over() -> None:
    replace(base, "scaled_dot_product_attention", _ordinary, _dispatch)
