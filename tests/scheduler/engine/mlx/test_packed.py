"""Packed keys and values: the same numbers wherever they are cut and by whichever product they are read."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import KVCache

from scheduler.engine.mlx import packed
from scheduler.engine.mlx.device import CUDA, METAL, X86, forced
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry
from scheduler.engine.mlx.kv.batch_rows import BatchRows
from scheduler.engine.mlx.kv.cache_layout import row_bytes, unpackable_size
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.kv.padded_rows import PaddedRows
from scheduler.engine.mlx.packed import PACKINGS, Bits, Packed, Packing
from tests.examples import examples

_BITS: tuple[Bits, ...] = (8, 4)
_PACKINGS = [packing for packing in PACKINGS.values() if packing is not None]


def _numbers(shape: tuple[int, ...], seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def _close(found: mx.array, expected: mx.array) -> bool:
    return float(mx.abs(found - expected).max()) <= 1e-5 * max(1.0, float(mx.abs(expected).max()))


@pytest.mark.parametrize("device", [X86, METAL, CUDA], ids=lambda traits: traits.kind)
@pytest.mark.parametrize("bits", _BITS)
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_they_are_within_a_step_of_what_was_packed(size: int, bits: Bits, device: Any) -> None:
    """A step is a group's range, divided by the codes; on each device they are unpacked alike."""
    numbers = _numbers((2, 3, 5, size))
    with forced(device):
        half = Packed.of(numbers, bits)
        found = half.unpacked()
    assert found.shape == numbers.shape == half.shape
    assert half.dtype == found.dtype == numbers.dtype
    groups = np.array(numbers).reshape(2, 3, 5, -1, packed.group_of(size) or 0)
    step = (groups.max(-1) - groups.min(-1)).max() / (2**bits - 1)
    # MLX moves the range until zero is a code: the numbers at its ends may be a step off.
    assert float(mx.abs(found - numbers).max()) <= 1.01 * step


@settings(deadline=None, max_examples=examples(40))
@given(
    bits=st.sampled_from(_BITS),
    size=st.sampled_from([32, 64, 96, 128]),
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=st.sampled_from([1, 2, 7, 33]),
    room=st.integers(1, 150),
    data=st.data(),
)
def test_products_are_those_of_the_unpacked_numbers(
    bits: Bits, size: int, rows: int, heads: int, queries: int, room: int, data: st.DataObject
) -> None:
    """By planes, by unpacking, and by MLX's own product, of views into longer arrays, piece by piece."""
    begin = data.draw(st.integers(0, room - 1))
    end = data.draw(st.integers(begin + 1, room))
    half = Packed.of(_numbers((rows, heads, room, size)), bits).span(begin, end)
    numbers = half.unpacked()
    left, weights = (
        _numbers((rows, heads, queries, size), 1),
        _numbers((rows, heads, queries, end - begin), 2),
    )
    for device in (X86, METAL, CUDA):
        with forced(device):
            assert _close(half.scores(left), left @ numbers.swapaxes(-1, -2))
            assert _close(half.weighted(weights), weights @ numbers)


@settings(deadline=None, max_examples=examples(30))
@given(tokens=st.integers(2, 40), packing=st.sampled_from(_PACKINGS), data=st.data())
def test_a_split_packs_nothing_again(tokens: int, packing: Packing, data: st.DataObject) -> None:
    """Anywhere: the halves have the words of the whole."""
    at = data.draw(st.integers(1, tokens - 1))
    keys, values = _numbers((1, 2, tokens, 64)), _numbers((1, 2, tokens, 64), 1)
    whole = KvSegment([packed.packed(keys, values, packing)], tokens)
    head, tail = whole.split(at)
    assert head.nbytes + tail.nbytes == whole.nbytes
    for all_tokens, first, rest in zip(whole.layers[0], head.layers[0], tail.layers[0], strict=True):
        assert isinstance(all_tokens, Packed)
        assert isinstance(first, Packed)
        assert isinstance(rest, Packed)
        for old, one, other in zip(all_tokens.arrays, first.arrays, rest.arrays, strict=True):
            assert mx.array_equal(mx.concatenate([one, other], axis=2), old)


@pytest.mark.parametrize("packing", [None, *_PACKINGS])
def test_a_segment_keeps_no_larger_array_alive(packing: Packing | None) -> None:
    """A cached prefix would else hold all rows that it was computed beside."""
    keys, values = packed.packed(_numbers((1, 2, 4096, 64)), _numbers((1, 2, 4096, 64)), packing)
    mx.eval(packed.arrays_of((keys, values)))
    before = mx.get_active_memory()
    segment = KvSegment([(packed.span_of(keys, 0, 3), packed.span_of(values, 0, 3))], 3)
    nbytes = keys.nbytes
    del keys, values
    assert mx.get_active_memory() < before - nbytes / 2
    assert segment.nbytes


def _used(*sizes: int) -> list[Any]:
    layers = [KVCache() for _ in sizes]
    for layer, size in zip(layers, sizes, strict=True):
        layer.update_and_fetch(*[mx.zeros((1, 2, 1, size), mx.float16)] * 2)
    return layers


@pytest.mark.parametrize(("name", "part"), [("q8", 0.53125), ("k8v4", 0.40625), ("q4", 0.28125)])
def test_a_token_takes_this_part_of_16_bits(name: Any, part: float) -> None:
    used = _used(128, 64)
    assert row_bytes(used, PACKINGS[name]).token_bytes == part * row_bytes(used).token_bytes


def test_a_head_that_cannot_be_packed_is_named() -> None:
    assert unpackable_size(_used(64, 96)) is None
    assert unpackable_size(_used(64, 80)) == 80


def _rows(tokens: int) -> BatchRows:
    geometry = BatchGeometry(((), ()), (0, 0))
    rows = BatchRows(0, PaddedRows([0, 0], coming_tokens=100), geometry, PACKINGS["q8"])
    rows.update_and_fetch(_numbers((2, 2, tokens, 64)), _numbers((2, 2, tokens, 64), 1))
    return rows


def test_what_attention_reads_is_packed_only_where_it_is_what_the_cache_gave() -> None:
    """MLA attends to keys that it makes of what the cache gave."""
    rows = _rows(5)
    keys, values = rows.update_and_fetch(_numbers((2, 2, 1, 64), 2), _numbers((2, 2, 1, 64), 3))
    found = rows.packed(keys, values)
    assert found is not None
    assert mx.array_equal(found[0].unpacked(), keys)
    assert rows.packed(keys * 2, values) is None
    assert rows.packed(values, keys) is None
