"""States are read from the disk tier as they were, and a file chooses nothing that is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import cache as mlx_caches

from scheduler.engine.disk.block_file import Content
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.mlx.kv.cache_layout import RowState
from scheduler.engine.mlx.kv.content_codec import state_content, state_of
from tests.scheduler.engine.disk.disk_contents import MODEL, SOON


@pytest.mark.parametrize(
    "layers",
    [
        [["load_prompt_cache", "a file"]],
        [["BatchKVCache", []]],
        [["CacheList", [[[], "make_prompt_cache"]]]],
        [["CacheList", [[[[[], "load_prompt_cache"]], "CacheList"]]]],
        [[["ArraysCache"], []]],
    ],
)
def test_a_file_cannot_choose_what_is_called(layers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only kinds of caches that states are made of, also inside a list of them."""
    called: list[Any] = []
    for name in ("load_prompt_cache", "make_prompt_cache"):
        stand_in = SimpleNamespace(from_state=called.append)
        monkeypatch.setattr(mlx_caches, name, stand_in)
    with pytest.raises((ValueError, TypeError)):
        state_of(Content({}, {"layers": layers}))
    assert called == []


def test_states_come_back_as_what_they_were(tmp_path: Path) -> None:
    """From a file, in every type that a state has."""
    kinds = (mx.float32, mx.float16, mx.bfloat16, mx.uint32, mx.int32, mx.int64, mx.uint8, mx.bool_)
    inner, outer = mlx_caches.ArraysCache(len(kinds)), mlx_caches.ArraysCache(1)
    for place, kind in enumerate(kinds):
        inner[place] = mx.array([[0, 1, 3]]).astype(kind)
    outer[0] = mx.array([[1.5, float("nan"), float("-inf"), -0.0]]).astype(mx.bfloat16)
    content = state_content(RowState([mlx_caches.CacheList(inner), outer]), {})
    tier = DiskTier(tmp_path, MODEL, 10**9)
    chain = tier.chain(range(256), "")
    tier.put_block_nowait(chain, 256, content)
    assert tier.flush(SOON)
    (block,) = tier.start_read(chain, 0, 256).result(SOON).blocks
    tier.close(SOON)
    back = state_of(block)
    assert [type(layer).__name__ for layer in back.layers] == ["CacheList", "ArraysCache"]
    for found, array in zip(back.layers[0].caches[0].cache, inner.cache, strict=True):
        assert found.dtype == array.dtype
        assert mx.array_equal(found, array)
    assert mx.array_equal(back.layers[1][0].view(mx.uint16), outer[0].view(mx.uint16))
