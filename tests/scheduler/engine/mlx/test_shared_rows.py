"""Rows that share runs in place get the tokens that each gets alone, whichever rows join and leave."""

from __future__ import annotations

from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.engine.mlx import shared_attention as attention
from scheduler.engine.mlx.batching import Batching
from scheduler.engine.mlx.packed import unpacked
from scheduler.engine.mlx.shared_attention import SharedGroup, shared_attention
from tests.examples import examples
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import checked
from tests.scheduler.engine.mlx.zoo.census import SMALL


@pytest.mark.usefixtures("device_of_its_own")
def test_a_device_whose_exponential_fails_far_below_zero_keeps_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check at load has a padded row and a part that is masked as a whole: e**-1e30 must be 0 there."""
    model, ordinary = random_model("qwen3", **SMALL), mx.exp
    assert checked(model, "qwen3") == Batching()
    monkeypatch.setattr(mx, "exp", lambda x: mx.where(x < -1e9, mx.nan, ordinary(x)))
    assert checked(model, "qwen3") == Batching(in_place=False)


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_shared_attention_is_ordinary_attention(data: st.DataObject) -> None:
    """Any rows, heads, groups over any rows one behind another, masks and sinks: the numbers of one softmax
    over everything."""
    draw = data.draw
    rows, kv_heads, repeats, length = (draw(st.integers(1, most)) for most in (5, 3, 3, 4))
    size, value_size, private = 8, draw(st.sampled_from([8, 4])), draw(st.integers(1, 9))
    mx.random.seed(draw(st.integers(0, 1 << 20)))
    heads = kv_heads * repeats
    queries = mx.random.normal((rows, heads, length, size))
    keys = mx.random.normal((rows, kv_heads, private, size))
    values = mx.random.normal((rows, kv_heads, private, value_size))
    mask = mx.random.uniform(shape=(rows, 1, length, private)) < 0.7
    mask[..., -1] = True
    sinks = mx.random.normal((heads,)) if draw(st.booleans()) else None
    members = draw(st.lists(st.lists(st.integers(0, rows - 1), min_size=1, unique=True), max_size=4))
    groups = [
        SharedGroup(
            mx.random.normal((1, kv_heads, tokens, size)),
            mx.random.normal((1, kv_heads, tokens, value_size)),
            tuple(sorted(chosen)),
            None if len(chosen) == rows else mx.array(sorted(chosen)),
        )
        for chosen in members
        for tokens in [draw(st.integers(1, 7))]
    ]
    with patch.object(attention, "_AT_ONCE", draw(st.sampled_from([1, 1 << 40]))):
        found = shared_attention(queries, keys, values, groups, size**-0.5, mask, sinks)
    for row in range(rows):
        mine = [group for group in groups if row in group.rows]
        all_keys = mx.concatenate([*(unpacked(group.keys) for group in mine), keys[row : row + 1]], axis=2)
        all_values = mx.concatenate(
            [*(unpacked(group.values) for group in mine), values[row : row + 1]], axis=2
        )
        before = all_keys.shape[2] - private
        seen = mx.concatenate([mx.ones((1, 1, length, before), mx.bool_), mask[row : row + 1]], axis=-1)
        expected = mx.fast.scaled_dot_product_attention(
            queries[row : row + 1], all_keys, all_values, scale=size**-0.5, mask=seen, sinks=sinks
        )
        assert mx.allclose(found[row : row + 1], expected, atol=1e-5, rtol=1e-4)
