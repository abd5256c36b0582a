"""MLX opens what the disk tier writes, with the same arrays."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as mlx_caches

from scheduler.engine.disk.block_file import ITEM_BYTES, Content, HostArray
from scheduler.engine.disk.disk_tier import DiskTier
from scheduler.engine.mlx.kv.cache_layout import RowState
from scheduler.engine.mlx.kv.content_codec import state_content, state_of
from tests.scheduler.engine.disk.disk_contents import MODEL, SOON, files_in

DTYPES = {
    "BOOL": mx.bool_,
    "U8": mx.uint8,
    "I8": mx.int8,
    "U16": mx.uint16,
    "I16": mx.int16,
    "F16": mx.float16,
    "BF16": mx.bfloat16,
    "U32": mx.uint32,
    "I32": mx.int32,
    "F32": mx.float32,
    "U64": mx.uint64,
    "I64": mx.int64,
    "C64": mx.complex64,
}


def detached(array: mx.array) -> bytes:
    """The bytes of an array, whatever its type."""
    return np.array(array.view(mx.uint8)).tobytes()


@pytest.fixture
def arrays() -> dict[str, mx.array]:
    numbers = mx.random.uniform(-100, 100, (2, 3, 4), key=mx.random.key(4))
    made = {name: numbers.astype(dtype) for name, dtype in DTYPES.items()}
    return made | {"BF16": mx.array([[1.5, float("nan"), float("-inf"), -0.0]]).astype(mx.bfloat16)}


def test_every_type_of_array_is_opened_by_mlx_as_it_was(tmp_path: Path, arrays: dict[str, mx.array]) -> None:
    content = Content(
        {name: HostArray(name, array.shape, detached(array)) for name, array in arrays.items()},
        {"offset": 256},
    )
    tier = DiskTier(tmp_path, MODEL, 10**9)
    chain = tier.chain(range(256), "")
    tier.put_block_nowait(chain, 256, content)
    assert tier.flush(SOON)
    (file,) = files_in(tmp_path).values()
    opened, metadata = cast(
        tuple[dict[str, mx.array], dict[str, str]], mx.load(str(file), return_metadata=True)
    )
    assert metadata["fingerprint"] == MODEL
    assert opened.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (opened[name].dtype, opened[name].shape) == (array.dtype, array.shape)
        assert detached(opened[name]) == detached(array)
    outcome = tier.start_read(chain, 0, 256).result(SOON)
    assert outcome.blocks == (content,)
    tier.close(SOON)


def test_mlx_has_no_type_that_the_disk_tier_lacks() -> None:
    assert DTYPES.keys() | {"F64"} == ITEM_BYTES.keys()


def test_what_is_read_becomes_an_array_without_another_copy_on_the_host(tmp_path: Path) -> None:
    """The arrays are aligned views of the file's bytes, also bfloat16 ones."""
    wanted = mx.arange(24).reshape(2, 3, 4).astype(mx.bfloat16)
    tier = DiskTier(tmp_path, MODEL, 10**9)
    chain = tier.chain(range(256), "")
    block = Content(
        {
            "flag": HostArray("BOOL", (3,), bytes(3)),
            "keys": HostArray("BF16", wanted.shape, detached(wanted)),
        }
    )
    tier.put_block_nowait(chain, 256, block)
    assert tier.flush(SOON)
    outcome = tier.start_read(chain, 0, 256).result(SOON)
    keys = outcome.blocks[0].arrays["keys"]
    host = np.frombuffer(keys.data, np.uint16).reshape(keys.shape)
    assert mx.array_equal(mx.array(host).view(mx.bfloat16), wanted)
    tier.close(SOON)


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


def test_states_come_back_as_what_they_were() -> None:
    inner, outer = mlx_caches.ArraysCache(2), mlx_caches.ArraysCache(1)
    inner[0], inner[1], outer[0] = mx.ones((1, 2)), mx.zeros((1, 3)), mx.full((1, 4), 7.0)
    state = RowState([mlx_caches.CacheList(inner), outer])
    content = state_content(state, {})
    back = state_of(Content(content.arrays, json.loads(json.dumps(content.metadata))))
    assert [type(layer).__name__ for layer in back.layers] == ["CacheList", "ArraysCache"]
    assert mx.array_equal(back.layers[1][0], outer[0])
    assert mx.array_equal(back.layers[0].caches[0][1], inner[1])
