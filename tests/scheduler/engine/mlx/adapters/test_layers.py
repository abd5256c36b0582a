"""A call of an adapted model for several rows equals mlx-lm's LoRA layers, row by row, in every type and on
every path; and without an adapter it is the base's, to the bit."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.tuner.utils import load_adapters

from scheduler.engine.mlx.adapters import layers
from scheduler.engine.mlx.adapters.adapters import Adapters
from scheduler.shared.messages import AdapterSource
from tests.scheduler.engine.mlx.adapters.adapted import write_adapter
from tests.scheduler.engine.mlx.families import random_model

TOLERANCE = {mx.float32: 1e-5, mx.bfloat16: 0.04, mx.float16: 0.005}
"""Fraction of the largest logit: another order of summation, in the type's precision."""


def model_in(dtype: Any) -> Any:
    model = random_model("qwen3")
    model.set_dtype(dtype)
    return model


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[AdapterSource]:
    """Write adapters of several ranks; the last one has no part in some layers."""
    folder = tmp_path_factory.mktemp("adapters")
    made = [
        write_adapter(random_model("qwen3"), folder / str(seed), seed=seed, rank=2 + seed, scale=1.0 + seed)
        for seed in range(3)
    ]
    keys = ["self_attn.q_proj", "mlp.down_proj"]
    return [*made, write_adapter(random_model("qwen3"), folder / "few", seed=9, keys=keys, layers=2)]


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("most_dense", [0, 256])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_rows_equal_mlx_lms_own_layers(
    sources: list[AdapterSource], dtype: Any, most_dense: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`most_dense` 0: gathered products also for single tokens."""
    monkeypatch.setattr(layers, "_MOST_DENSE", most_dense)
    model = model_in(dtype)
    adapters = Adapters(model)
    for source in sources:
        adapters.load(source)
    keys = ["", *(source.key for source in reversed(sources)), "", sources[0].key]
    inputs = mx.arange(len(keys) * tokens).reshape(len(keys), tokens) + 1
    with adapters.over(keys):
        together = model(inputs)
    assert together.dtype == dtype or dtype == mx.float32
    alone = {"": model_in(dtype)}
    alone |= {source.key: load_adapters(model_in(dtype), source.folder) for source in sources}
    for row, key in enumerate(keys):
        wanted = alone[key](inputs[row : row + 1])[0].astype(mx.float32)
        difference = mx.abs(together[row].astype(mx.float32) - wanted).max()
        assert (difference <= TOLERANCE[dtype] * mx.abs(wanted).max()).item()


def test_rows_without_an_adapter_are_the_bases_to_the_bit(sources: list[AdapterSource]) -> None:
    """Also beside others, in the same shapes; a call without any is the same call as before."""
    model = random_model("qwen3")
    inputs = mx.arange(20).reshape(4, 5)
    before = model(inputs)
    adapters = Adapters(model)
    for source in sources:
        adapters.load(source)
    with adapters.over(["", "", "", ""]):
        assert mx.array_equal(model(inputs), before)
    with adapters.over(["", sources[0].key, "", sources[1].key]):
        mixed = model(inputs)
    assert mx.array_equal(mixed[0], before[0])
    assert mx.array_equal(mixed[2], before[2])
    assert not mx.array_equal(mixed[1], before[1])


def close(logits: mx.array, wanted: mx.array) -> bool:
    return bool((mx.abs(logits - wanted).max() <= 1e-5 * mx.abs(wanted).max()).item())


def test_one_that_is_refused_leaves_the_others_as_they_are(sources: list[AdapterSource]) -> None:
    model = random_model("qwen3")
    adapters = Adapters(model)
    for source in sources:
        adapters.load(source)
    keys = [source.key for source in sources]
    inputs = mx.arange(4)[:, None] + 1
    with adapters.over(keys):
        before = model(inputs)
    held = adapters.nbytes
    adapters._remove(keys[3])
    assert adapters.nbytes < held
    with adapters.over([*keys[:3], ""]):
        after = model(inputs)
    assert close(after[:3], before[:3])
    adapters.load(sources[3])
    with adapters.over(keys):
        assert close(model(inputs), before)
