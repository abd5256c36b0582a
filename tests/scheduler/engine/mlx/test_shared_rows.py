"""Rows that share runs in place get the tokens that each gets alone, whichever rows join and leave."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from scheduler.engine.mlx import shared_attention as attention
from scheduler.engine.mlx.kv.batch_geometry import BatchGeometry, Run
from scheduler.engine.mlx.kv.batch_rows import BatchRows, RowStart
from scheduler.engine.mlx.kv.kv_segment import KvSegment
from scheduler.engine.mlx.packed import unpacked
from scheduler.engine.mlx.shared_attention import SharedGroup, shared_attention
from scheduler.engine.mlx.sharing_check import shares_in_place
from scheduler.shared.messages import Cancel, Submit
from tests.contracts.journal import prompt_of
from tests.examples import examples, sampled
from tests.scheduler.engine.mlx.families import random_model
from tests.scheduler.engine.mlx.reuse import ReuseEngine, engine_of

SHARING = ["gemma2", "gpt_oss", "granitemoehybrid", "lfm2", "llama", "nemotron_h", "qwen3", "qwen3_next"]
"""Families whose full attention was taken over; the others' rows have copies."""


@pytest.mark.parametrize("family", [*SHARING, "gemma3_text", "qwen3_5"])
def test_these_families_share(family: str) -> None:
    """Grouped queries, sinks, hybrids: the check at load finds the attention equal."""
    assert shares_in_place(random_model(family))


def test_bounded_scores_are_rounded_as_mlx_lm_rounds_them() -> None:
    """gemma2 in bfloat16, whose own attention has scores of that type."""
    model = random_model("gemma2")
    model.set_dtype(mx.bfloat16)
    assert shares_in_place(model)


@pytest.mark.parametrize("family", ["deepseek_v3"])
def test_what_differs_is_left_alone(family: str) -> None:
    """MLA adds part of its scores before attention is called: prefixes are copied, as ever."""
    assert not shares_in_place(random_model(family))


@pytest.mark.usefixtures("device_of_its_own")
def test_a_device_whose_exponential_fails_far_below_zero_keeps_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The check at load has a padded row and a part that is masked as a whole: e**-1e30 must be 0 there."""
    model, ordinary = random_model("qwen3"), mx.exp
    assert shares_in_place(model)
    monkeypatch.setattr(mx, "exp", lambda x: mx.where(x < -1e9, mx.nan, ordinary(x)))
    assert not shares_in_place(model)


@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_shared_attention_is_ordinary_attention(data: st.DataObject) -> None:
    """Any rows, heads, groups over any rows one behind another, masks, sinks and bounds on scores: the
    numbers of one softmax over everything."""
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
    softcap = draw(st.sampled_from([None, 0.5, 2.0]))
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
        found = shared_attention(queries, keys, values, groups, size**-0.5, mask, sinks, softcap)
    for row in range(rows):
        mine = [group for group in groups if row in group.rows]
        all_keys = mx.concatenate([*(unpacked(group.keys) for group in mine), keys[row : row + 1]], axis=2)
        all_values = mx.concatenate(
            [*(unpacked(group.values) for group in mine), values[row : row + 1]], axis=2
        )
        before = all_keys.shape[2] - private
        seen = mx.concatenate([mx.ones((1, 1, length, before), mx.bool_), mask[row : row + 1]], axis=-1)
        scores = size**-0.5 * queries[row : row + 1] @ mx.repeat(all_keys, repeats, 1).swapaxes(-1, -2)
        if softcap is not None:
            scores = softcap * mx.tanh(scores / softcap)
        # As an added mask of products of nothing, for MLX's own attention has no bound.
        added = mx.where(seen, scores, -mx.inf)
        expected = mx.fast.scaled_dot_product_attention(
            mx.zeros_like(queries[row : row + 1]), all_keys, all_values, scale=1.0, mask=added, sinks=sinks
        )
        assert mx.allclose(found[row : row + 1], expected, atol=1e-5, rtol=1e-4)


def _tree(generator: random.Random, count: int) -> list[list[int]]:
    """Prompts behind a few nested prefixes, and some behind none."""
    shared_prefix = [token % 300 for token in prompt_of(40, generator.randrange(999))]
    branches = [
        shared_prefix + [token % 300 for token in prompt_of(25, generator.randrange(999))] for _ in range(2)
    ]
    prompts = []
    for _ in range(count):
        start = generator.choice([shared_prefix, *branches, branches[0][:52], []])
        own = [generator.randrange(300) for _ in range(generator.randrange(1, 12))]
        prompts.append(start + own)
    return prompts


@pytest.mark.parametrize(
    "family",
    sampled(
        ["llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss", "qwen3_next", "deepseek_v3"],
        ["qwen3", "gpt_oss"],
    ),
)
@pytest.mark.parametrize("seed", [1])
def test_random_trees_random_joins_and_leaves(family: str, seed: int) -> None:
    """Prompts behind nested prefixes come and go for 100 steps, some cancelled: each has its own tokens."""
    engine: ReuseEngine = engine_of(family)
    generator = random.Random(seed)
    submits: list[Submit] = []
    cancelled = set[int]()
    prompts = _tree(generator, 14)
    grouped = 0
    for turn in range(100):
        commands: list[Any] = []
        while prompts and generator.random() < 0.25:
            boundaries = (40, 65) if generator.random() < 0.8 else ()
            submits.append(
                engine.submit(prompts.pop(), max_tokens=generator.randrange(1, 24), boundaries=boundaries)
            )
            commands.append(submits[-1])
        if submits and generator.random() < 0.03:
            victim = generator.choice(submits).request_id
            cancelled.add(victim)
            commands.append(Cancel(victim))
        engine.iterate(commands)
        if turn % 7 == 0:
            grouped += _groups(engine)
    engine.finish()
    assert not prompts
    for submit in submits:
        if submit.request_id in cancelled:
            engine.check_beginning(submit)
        else:
            engine.check(submit)
    assert (grouped > 0) == (family != "deepseek_v3")


def _groups(engine: ReuseEngine) -> int:
    caches = engine.batch._generation_batch.prompt_cache
    return sum(len(layer.groups) for layer in caches if isinstance(layer, BatchRows))


def test_logits_are_those_of_a_row_alone() -> None:
    """In float32 to one part in ten thousand, chunk by chunk and token by token."""
    model = random_model("qwen3")
    prefix, rests = [1, 2, 3, 4, 5, 6, 7, 8, 9], [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19, 20, 21]]
    single = make_prompt_cache(model)
    model(mx.array([prefix]), cache=single)
    batch: list[Any] = []
    for layer in single:
        path = (Run(KvSegment([layer.keys_and_values()], len(prefix)), len(prefix)),)
        shared, alone = BatchGeometry((path,), (0,)), BatchGeometry(((),), (0,))
        starts = [RowStart(0, shared, (), 4), RowStart(0, alone, path, 4), RowStart(0, shared, (), 4)]
        batch.append(starts[0].merge(starts))
    found = mx.concatenate(
        [model(mx.array(rests)[:, :3], cache=batch), model(mx.array(rests)[:, 3:], cache=batch)], axis=1
    )
    for row, rest in enumerate(rests):
        alone = model(mx.array([prefix + rest]))[:, len(prefix) :]
        assert mx.allclose(found[row : row + 1], alone, atol=1e-4, rtol=1e-4)
