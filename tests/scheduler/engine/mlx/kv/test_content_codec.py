"""From device arrays to the disk tier's bytes and back."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.disk.block_file import Content
from scheduler.engine.mlx.kv.content_codec import layers_of, span_content
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import unpacked

_LAYERS = 3


def _segment(tokens: int, dtype: mx.Dtype, seed: int) -> KvSegment:
    """MLA's halves differ in their last axis."""
    made = [
        mx.random.normal((1, 2, tokens, size), key=mx.random.key(10 * seed + place)).astype(dtype)
        for place, size in enumerate([8, 4] * _LAYERS)
    ]
    return KvSegment(list(zip(made[::2], made[1::2], strict=True)), tokens)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_a_block_across_segments_is_what_lies_there_after_one_evaluation(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An evaluation for each array is a round trip to a GPU for each, on the engine's thread."""
    first, second, third = (_segment(tokens, dtype, tokens) for tokens in (5, 9, 7))
    pieces = (first, second, third)
    whole = [
        [mx.concatenate([unpacked(piece.layers[at][half]) for piece in pieces], axis=2) for half in range(2)]
        for at in range(_LAYERS)
    ]
    evaluations: list[tuple[Any, ...]] = []
    evaluate = mx.eval

    def counted(*arrays: Any) -> None:
        evaluations.append(arrays)
        evaluate(*arrays)

    monkeypatch.setattr(mx, "eval", counted)
    content = Content(span_content([(first, 5), (second, 9), (third, 3)], 3, 16))
    assert len(evaluations) == 1
    for layer, expected in zip(layers_of(content), whole, strict=True):
        for half, all_tokens in zip(layer, expected, strict=True):
            assert half.dtype == dtype
            assert mx.array_equal(unpacked(half), all_tokens[:, :, 3:16])
