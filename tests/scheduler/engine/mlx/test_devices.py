"""What depends on the device beside numbers, on the CPU, by forcing the choice: masks, buffers, wired memory.

That each request has its own tokens on either side of a branch: `zoo/test_meetings.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from scheduler.engine.device import Traits
from scheduler.engine.mlx.device import CUDA, METAL, X86, MlxDevice, forced
from tests.contracts.journal import prefixes_of
from tests.scheduler.engine.mlx.reuse import engine_of, words


@pytest.mark.parametrize("device", [METAL, CUDA], ids=["metal", "cuda"])
def test_fused_attention_gets_no_mask_where_no_row_is_padded(
    device: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row alone, and rows of one length together: in their chunks and in every decode step."""
    masks: list[object] = []
    fused = mx.fast.scaled_dot_product_attention

    def attend(*args: Any, mask: Any = None, **fields: Any) -> mx.array:
        masks.append("array" if isinstance(mask, mx.array) else mask)
        return fused(*args, mask=mask, **fields)

    with forced(device):
        engine = engine_of("qwen3", budget_bytes=0, prefill_chunk_tokens=64)
        monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", attend)
        together = [engine.submit(words(21, at)) for at in range(3)]
        engine.iterate([engine.submit(words(30, 9))])
        engine.finish()
        engine.iterate(together)
        engine.finish()
    assert set(masks) == {None, "causal"}
    for submit in together:
        engine.check(submit)


def test_cached_prefixes_stay_below_half_of_the_device_s_buffers() -> None:
    """Four layers have eight arrays a node: of 64 buffers the cache may hold 32, four nodes. All are
    answered, and what is evicted is computed again."""
    with forced(replace(METAL, most_buffers=64)):
        engine = engine_of("qwen3")
        prefixes = prefixes_of(engine.backend)
        for at in range(4):
            engine.ask(engine.submit(words(20, at), max_tokens=3), engine.submit(words(30, at), max_tokens=3))
            assert prefixes.statistics().nodes <= 4
        assert prefixes.statistics().evicted_tokens["budget"] > 0


@pytest.mark.parametrize(
    ("device", "limit", "asked"),
    [(METAL, 1000, [700]), (METAL, 500, [500]), (CUDA, 1000, []), (X86, 1000, [])],
)
def test_only_metal_keeps_memory_wired(
    device: Traits, limit: int, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere MLX raises. What is allocated are the weights, once nothing is left of loading them, and
    nothing is freed under a step in flight; two engines on a Mac have half of the memory each."""
    calls: list[object] = []
    monkeypatch.setattr(mx, "synchronize", lambda: calls.append("waited"))
    monkeypatch.setattr(mx, "clear_cache", lambda: calls.append("cleared"))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 700)
    monkeypatch.setattr(mx, "set_wired_limit", calls.append)
    MlxDevice(device).wire_weights(limit)
    assert calls == (["waited", "cleared", *asked] if asked else [])


@pytest.mark.parametrize(("device", "allowed"), [(METAL, 300 << 20), (X86, 64 << 20)])
def test_scores_are_bounded_by_the_memory_limit_and_the_device(device: Traits, allowed: int) -> None:
    """x86 computes in pieces close to the sizes of its caches, however much memory there is."""
    own = MlxDevice(device)
    own.limit_scores(300 << 20)
    assert own.score_bytes == allowed
