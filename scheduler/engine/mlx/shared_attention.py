"""Attention of a batch whose rows begin with the same tokens: the shared keys and values are read once.

With rows r, a shared run of S tokens and private runs of T, one decode step of a layer reads

    ordinary:  r * (S + T) tokens of keys and values        (every row has a copy of the run)
    shared:    S + r * T                                     (one matrix product of all rows' queries)

so it pays as soon as (r - 1) * S tokens cost more than the few operations of merging
(`../planning/row_sharing.py` holds the bound). The softmax is exact, in one of two ways:

- Where the scores of all parts fit into memory at once, as in a decode step, they are put side by side and
  weighted as one (`_of_all_scores`). What an operation costs beside its work is what counts there: on an H100
  the 55 operations a layer of the other way (bfloat16) were 20 ms a step; these are 36. NumPy, on x86, takes
  parts.
- Else each part gives its maximum, its sum and its weighted values, and they are merged in float32 as in
  Hydragen (arXiv 2402.05099) and FlashInfer's cascade.

Scores are float32 whatever the weights are, as in MLX's fused kernels: rounded to 16 bits before the softmax
they made 3 to 10 times a fused kernel's error. MLX has no product of 16-bit matrices with a float32 answer,
so one layer's keys are copied to float32: a shared token moves three times its bytes (by arithmetic; not
measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import mlx.core as mx

from scheduler.engine.mlx.cpu.softmax import goes_to_host, merge_weight, softmax_parts
from scheduler.engine.mlx.device import device
from scheduler.engine.mlx.packed import Numbers, Packed

_SCORE_BYTES = 16
"""Bytes per score in the worst case: product, masked score and weight in float32, and the weight in 16 bits;
in float32 one of the buffers is reused."""
_AT_ONCE = 3
"""How many times these bytes a score takes where all lie side by side: they are copied, and little is freed
before the end (44 bytes measured on the CPU). Chunks of many queries are for pieces, whose operations are
large."""
_MASKED = -1e30
"""Finite, so that a fully masked part has weight 0 and not NaN."""


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """One layer's run with which some rows of the batch begin, or continue after another run."""

    keys: Numbers
    """(1, kv heads, tokens, head size), as are the values."""
    values: Numbers
    rows: tuple[int, ...]
    index: mx.array | None
    """The rows as an array; None if they are all rows of the batch, in order."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Attention over some of the keys, not yet divided: float32, (..., queries, 1 or head size)."""

    most: mx.array
    total: mx.array
    weighted: mx.array

    def merge(self, other: _Part) -> _Part:
        most = mx.maximum(self.most, other.most)
        ours, theirs = merge_weight(self.most - most), merge_weight(other.most - most)
        return _Part(
            most,
            self.total * ours + other.total * theirs,
            self.weighted * ours + other.weighted * theirs,
        )


def shared_attention(
    queries: mx.array,
    keys: Numbers,
    values: Numbers,
    groups: Sequence[SharedGroup],
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Return the attention of (rows, heads, length, size) queries over each row's groups and its private
    keys.

    `mask` (boolean, or added) is for the private keys alone: a shared run lies before every query of its
    rows. `sinks` (heads) take part in the softmax and have no value, as in gpt-oss.

    The answer has the type of `values`.
    """
    dtype = values.dtype
    if dtype != mx.float32:  # Once, not for each piece.
        groups = [
            SharedGroup(group.keys.astype(mx.float32), _wide(group.values), group.rows, group.index)
            for group in groups
        ]
        queries, keys, values = queries.astype(mx.float32), keys.astype(mx.float32), _wide(values)
    return _attention(queries, keys, values, groups, scale, mask, sinks).astype(dtype)


def _wide(values: Numbers) -> Numbers:
    """Convert float16, which ends at 65,504: 16,384 equal weights times values of 4 exceed it, and weights
    divided by their sum first would be subnormal. bfloat16 has float32's range: its values are not copied."""
    return values.astype(mx.float32) if values.dtype == mx.float16 else values


def _attention(
    queries: mx.array,
    keys: Numbers,
    values: Numbers,
    groups: Sequence[SharedGroup],
    scale: float,
    mask: mx.array | None,
    sinks: mx.array | None,
) -> mx.array:
    """Return the attention for queries and keys of one type, in float32."""
    rows, heads, length, size = queries.shape
    lengths = [keys.shape[2], *(group.keys.shape[2] for group in groups)]
    scores = rows * heads * length * sum(lengths)
    at_once = _AT_ONCE * scores <= _most_scores() and not goes_to_host(scores)
    piece = max(1, _most_scores() // (rows * heads * max(lengths)))
    if length > piece and (mask is None or mask.shape[-2] == length):
        answers: list[mx.array] = []
        for start in range(0, length, piece):
            span = slice(start, start + piece)
            mine = None if mask is None else mask[..., span, :]
            chosen = _after(answers[-1:], queries[:, :, span])
            answers.append(_attention(chosen, keys, values, groups, scale, mine, sinks))
        return mx.concatenate(answers, axis=2)
    kv_heads = keys.shape[1]
    queries = (queries * scale).reshape(rows, kv_heads, heads // kv_heads * length, size)
    by_query = None
    if sinks is not None:
        by_query = mx.repeat(sinks.astype(mx.float32).reshape(1, heads), length, axis=-1)
        by_query = by_query.reshape(1, kv_heads, -1, 1)
    if at_once:
        answer = _of_all_scores(queries, keys, values, groups, mask, by_query, length)
        return answer.reshape(rows, heads, length, values.shape[-1])
    part = _attend(queries, keys, values, mask, length)
    for group in groups:
        chosen = queries if group.index is None else queries[group.index]
        found = _attend_run(chosen, group.keys, group.values)
        part = part.merge(found if group.index is None else _spread(found, group.index, rows))
    if by_query is not None:
        part = part.merge(_Part(by_query, mx.ones_like(by_query), mx.zeros_like(by_query)))
    return (part.weighted / part.total).reshape(rows, heads, length, values.shape[-1])


def _most_scores() -> int:
    return device().score_bytes // _SCORE_BYTES


def _after(done: list[mx.array], queries: mx.array) -> mx.array:
    """Return `queries`, to be computed after `done`: MLX walks a graph breadth first, and would hold the
    scores of twenty pieces at the same time."""
    return mx.depends(queries, done) if done else queries


def _of_all_scores(
    queries: mx.array,
    keys: Numbers,
    values: Numbers,
    groups: Sequence[SharedGroup],
    mask: mx.array | None,
    sinks: mx.array | None,
    length: int,
) -> mx.array:
    """Return the attention, (rows, kv heads, n, size) in float32, from the scores of all parts side by side:
    those of the private keys, then of each group, then the sinks, (1, kv heads, n, 1), which have no values.
    A row that a group has not gets the weight 0 there."""
    scores = [_masked(_scores(queries, keys), mask, length)]
    together = {group.rows: _together(queries, group.index) for group in groups}
    for group in groups:
        found = _apart(_scores(together[group.rows], group.keys), len(group.rows))
        scores.append(found if group.index is None else _placed(found, group.index, len(queries), _MASKED))
    if sinks is not None:
        scores.append(mx.broadcast_to(sinks, (*queries.shape[:-1], 1)))
    _, weights, total = softmax_parts(mx.concatenate(scores, axis=-1) if len(scores) > 1 else scores[0])
    weights = weights.astype(values.dtype)
    end = keys.shape[2]
    answer = _weighted(weights[..., :end], values).astype(mx.float32)
    for group in groups:
        begin, end = end, end + group.keys.shape[2]
        found = _apart(
            _weighted(_together(weights[..., begin:end], group.index), group.values), len(group.rows)
        )
        answer = answer + found if group.index is None else answer.at[group.index].add(found)
    return answer / total


def _together(by_row: mx.array, index: mx.array | None) -> mx.array:
    """Return (1, kv heads, rows * n, size) of the rows of this index, or of all: what one product reads."""
    chosen = by_row if index is None else by_row[index]
    rows, kv_heads, count, size = chosen.shape
    return chosen.swapaxes(0, 1).reshape(1, kv_heads, rows * count, size)


def _apart(together: mx.array, rows: int) -> mx.array:
    """Return (rows, kv heads, n, size) of what was put together."""
    _, kv_heads, count, size = together.shape
    return together.reshape(kv_heads, rows, count // rows, size).swapaxes(0, 1)


def _scores(queries: mx.array, keys: Numbers) -> mx.array:
    """Return (rows, kv heads, n, tokens) scores in float32."""
    return keys.scores(queries) if isinstance(keys, Packed) else queries @ keys.swapaxes(-1, -2)


def _masked(scores: mx.array, mask: mx.array | None, length: int) -> mx.array:
    if mask is None:
        return scores
    shape = scores.shape
    if length > 1:
        scores = scores.reshape(*shape[:2], -1, length, shape[-1])
    if mask.ndim == 4:  # (rows, 1 or heads, queries, keys): MLA adds scores of its own by head.
        if mask.shape[1] == shape[1] * (shape[2] // length) != 1:
            mask = mask.reshape(-1, *scores.shape[1:-1], shape[-1])
        elif length > 1:
            mask = mask[:, :, None]
    scores = mx.where(mask, scores, _MASKED) if mask.dtype == mx.bool_ else mx.maximum(scores + mask, _MASKED)
    return scores if length == 1 else scores.reshape(shape)


def _weighted(weights: mx.array, values: Numbers) -> mx.array:
    """Return the sums of the values by these weights, which have their type."""
    return values.weighted(weights) if isinstance(values, Packed) else weights @ values


def _attend(
    queries: mx.array,
    keys: Numbers,
    values: Numbers,
    mask: mx.array | None,
    length: int,
) -> _Part:
    """Return the part of (rows, kv heads, n, size) queries over (rows, kv heads, tokens, size) keys, each row
    over its own."""
    most, weights, total = softmax_parts(_masked(_scores(queries, keys), mask, length))
    weighted = _weighted(weights.astype(values.dtype), values)
    return _Part(most, total, weighted.astype(mx.float32))


def _attend_run(queries: mx.array, keys: Numbers, values: Numbers) -> _Part:
    """Return the part of all rows' queries over one run, as one product per head."""
    rows, kv_heads, count, _ = queries.shape
    together = _together(queries, None)
    most_queries = max(1, _most_scores() // (kv_heads * keys.shape[2]))
    parts: list[_Part] = []
    for start in range(0, rows * count, most_queries):
        chosen = _after([part.weighted for part in parts[-1:]], together[:, :, start : start + most_queries])
        parts.append(_attend(chosen, keys, values, None, count))
    whole = _joined(parts)
    return _Part(_apart(whole.most, rows), _apart(whole.total, rows), _apart(whole.weighted, rows))


def _joined(parts: Sequence[_Part]) -> _Part:
    if len(parts) == 1:
        return parts[0]
    return _Part(
        mx.concatenate([part.most for part in parts], axis=2),
        mx.concatenate([part.total for part in parts], axis=2),
        mx.concatenate([part.weighted for part in parts], axis=2),
    )


def _spread(part: _Part, index: mx.array, rows: int) -> _Part:
    """Return a part of some rows as a part of all; the others have weight 0."""
    return _Part(
        _placed(part.most, index, rows, _MASKED),
        _placed(part.total, index, rows, 0.0),
        _placed(part.weighted, index, rows, 0.0),
    )


def _placed(found: mx.array, index: mx.array, rows: int, elsewhere: float) -> mx.array:
    """Return the float32 numbers of some rows among all, with `elsewhere` in the others."""
    placed = _filled((rows, *found.shape[1:]), elsewhere)[:]  # An array of its own, so far without a copy.
    placed[index] = found
    return placed


@lru_cache(maxsize=64)
def _filled(shape: tuple[int, ...], number: float) -> mx.array:
    """Return this number as often: one number in memory, and one array for all layers and steps."""
    return mx.broadcast_to(mx.array(number, mx.float32), shape)
