"""Measures at load what a shared group costs a decode step, in tokens of keys and values that it must save.

A group is some ten to twenty operations a layer beside one read of its keys and values, and it saves reads,
not scores. Whether that pays depends on the device: on x86, where scores cost more than reads, two rows gain
from 4,000 shared tokens on; with MLX's fused attention on the same CPU from 900. So steps of a few rows are
timed on the loaded model: behind copies of a short run, behind copies of a long one, and with the long one in
place. The memory that copies take bounds the cost (`../planning/row_sharing.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from scheduler.engine.mlx.kv.cache_layout import CacheLayout, RowState
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import Packing, packed
from scheduler.engine.prefix.nodes import Lease
from scheduler.shared.device_errors import is_device_error
from scheduler.shared.row_bytes import RowBytes

ROWS = 4
SHORT_TOKENS, LONG_TOKENS = 16, 1024
_LEAST_LONG_TOKENS = 256
"""The least run: with fewer tokens, what copies add to a step is lost in noise."""
_MOST_BYTES = 512 << 20
"""Bound on the copies: measuring must not need more memory than requests do."""
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 17
_SECONDS = 0.1
"""Seconds within which more rounds than the least are made."""
_LEAST_COST, _MOST_COST = 64, 8192
_AGREEMENT = 2.0
"""How many times the lesser of two measurements the other may be. On a busy machine they differ by more, and
what is kept would be noise."""

Step = Callable[[], object]


class Times(NamedTuple):
    """Seconds of a step behind short copies, behind long copies, and with the long run in place."""

    short: float
    copied: float
    in_place: float


def group_cost_tokens(
    model: Any,
    held: RowBytes,
    clock: Callable[[], float] = time.perf_counter,
    packing: Packing | None = None,
) -> int | None:
    """Return the cost of a group, within 64 to 8,192 tokens, or None where it cannot be measured: no layer
    can be shared, rows are too large, the model raises, copies of a long run cost nothing, or two
    measurements disagree."""
    if not held.token_bytes:
        return None
    tokens = min(LONG_TOKENS, _MOST_BYTES // (ROWS * held.token_bytes))
    if tokens < _LEAST_LONG_TOKENS:
        return None
    try:
        return agreed_cost(step_times(model, tokens, clock, packing), tokens)
    except Exception as error:  # Models raise many types for a cache that they do not expect.
        if is_device_error(error):
            raise
        return None


def agreed_cost(times: tuple[Times, Times], tokens: int) -> int | None:
    first, second = (cost_in_tokens(each, tokens) for each in times)
    if first is None or second is None or max(first, second) > _AGREEMENT * min(first, second):
        return None
    return (first + second) // 2


def cost_in_tokens(times: Times, tokens: int) -> int | None:
    """Return what a group costs, or None if the copies of `tokens` cost nothing. The group's time is what the
    step in place takes beyond one in which the run was read once."""
    token_seconds = (times.copied - times.short) / (ROWS * (tokens - SHORT_TOKENS))
    if token_seconds <= 0:
        return None
    group_seconds = times.in_place - times.copied + (ROWS - 1) * tokens * token_seconds
    return round(min(_MOST_COST, max(_LEAST_COST, group_seconds / token_seconds)))


def step_times(
    model: Any,
    tokens: int,
    clock: Callable[[], float] = time.perf_counter,
    packing: Packing | None = None,
) -> tuple[Times, Times]:
    """Time steps in turn, in two measurements that alternate. The fastest of each counts, for other work on
    the machine can only slow a step; the first warms up."""
    used: list[Any] = make_prompt_cache(model)
    mx.eval(model(mx.array([[1]]), cache=used))
    layout = CacheLayout(model, packing)
    steps = [
        _step(model, layout, used, SHORT_TOKENS, 0),
        _step(model, layout, used, tokens, 0),
        _step(model, layout, used, tokens, 1),
    ]
    seconds: list[list[float]] = [[] for _ in steps]
    begun = clock()
    for done in range(_MOST_ROUNDS):
        if done >= _LEAST_ROUNDS and clock() - begun > _SECONDS:
            break
        for own, step in zip(seconds, steps, strict=True):
            started = clock()
            step()
            own.append(clock() - started)
    return Times(*(min(own[1::2]) for own in seconds)), Times(*(min(own[2::2]) for own in seconds))


def _step(model: Any, layout: CacheLayout, used: Sequence[Any], tokens: int, shared_runs: int) -> Step:
    """Return a decode step of rows behind one run of random numbers."""
    halves = [layer.keys_and_values() for layer in used if type(layer) is KVCache]
    layers = [
        packed(_random(keys, tokens), _random(values, tokens), layout.packing) for keys, values in halves
    ]
    segment = KvSegment(layers, tokens)
    state = layout.state(used) if layout.needs_state else None
    lease: Lease[KvSegment, RowState] = Lease(tokens, ((segment, tokens),), state, None)
    rows = [layout.start(lease, shared_runs, _MOST_ROUNDS) for _ in range(ROWS)]
    batch = [layers[0].merge(list(layers)) for layers in zip(*rows, strict=True)]
    inputs = mx.array([[1]] * ROWS)

    def step() -> None:
        mx.eval(model(inputs, cache=batch))

    return step


def _random(like: mx.array, tokens: int) -> mx.array:
    """Return random numbers of the type of `like`, (1, heads, tokens, size)."""
    return mx.random.normal((1, like.shape[1], tokens, like.shape[3])).astype(like.dtype)
