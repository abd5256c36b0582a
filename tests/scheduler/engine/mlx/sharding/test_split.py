"""What cannot be split is refused by name, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten

from scheduler.engine.mlx.sharding.rank import RanksUnusable
from scheduler.engine.mlx.sharding.split import Way, split, way_of
from tests.scheduler.engine.mlx.zoo import tiny
from tests.scheduler.engine.mlx.zoo.census import build


@dataclass(frozen=True, slots=True)
class _Group:
    """What `shard` and `pipeline` ask of a group: nothing is computed."""

    ranks: int = 2
    number: int = 0

    def size(self) -> int:
        return self.ranks

    def rank(self) -> int:
        return self.number


def _split(model: Any, ranks: int = 2, number: int = 0) -> Way:
    group: Any = _Group(ranks, number)
    way = way_of(model, ranks)
    split(model, group, way)
    return way


def _model(name: str, **sizes: Any) -> Any:
    config = tiny.configuration(name, sizes)
    return tiny.random_model(name, config)


def test_a_module_that_mlx_lm_cannot_split_is_named() -> None:
    model, _ = build("gemma3_text")
    with pytest.raises(RanksUnusable, match=r"cannot split gemma3_text.*without --ranks"):
        way_of(model, 2)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"num_attention_heads": 2, "num_key_value_heads": 1}, "n_kv_heads is 1"),
        # Its size divides, the heads do not: mlx-lm would cut one in two.
        ({"num_attention_heads": 6, "num_key_value_heads": 3}, "n_kv_heads is 3"),
        ({"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 65}, "65|split"),
    ],
)
def test_what_does_not_divide_is_refused(sizes: dict[str, Any], named: str) -> None:
    with pytest.raises(RanksUnusable, match=rf"qwen3 does not divide into 2 ranks \(.*({named})"):
        _split(_model("qwen3", **sizes))


def test_a_group_of_quantised_weights_is_not_cut() -> None:
    """96 inputs of `down_proj` are three groups of 32: no half of them has whole ones."""
    model = _model("qwen3", num_attention_heads=4, num_key_value_heads=2, intermediate_size=96)
    quantize(model, group_size=32, bits=4)
    with pytest.raises(RanksUnusable, match="qwen3 does not divide"):
        _split(model)


def test_layers_go_to_ranks_where_heads_do_not_divide() -> None:
    """Three machines and four heads: mlx-lm has both ways for this module."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 6}
    model = _model("qwen3_moe", **sizes)
    assert way_of(model, 2) == "tensor"
    assert _split(model, ranks=3, number=1) == "pipeline"
    assert len(model.layers) == 2


def test_nccl_has_no_pipeline() -> None:
    """MLX's back end for it has neither Send nor Recv. Heads go over it, in numbers that are named."""
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 6}
    model = _model("qwen3_moe", **sizes)
    assert way_of(model, 2, "nccl") == "tensor"
    assert way_of(model, 3, "jaccl") == "pipeline"
    with pytest.raises(RanksUnusable, match=r"only, and NCCL cannot send.*take 2 or 4 ranks"):
        way_of(model, 3, "nccl")


def test_a_trial_leaves_the_model_whole() -> None:
    model, _ = build("qwen3_moe")
    with pytest.raises(RanksUnusable):
        way_of(model, 7)
    assert way_of(model, 1) == "tensor"
    assert len(model.layers) == tiny.LAYERS


def test_layers_that_do_not_give_each_rank_the_same_caches_are_refused() -> None:
    """Four layers in turn: three ranks, or the recurrent ones to one and attention to another."""
    model, _ = build("qwen3_next")
    with pytest.raises(RanksUnusable, match="qwen3_next does not divide into 3 ranks"):
        _split(model, ranks=3)
    model, _ = build("qwen3_next")
    with pytest.raises(RanksUnusable, match="qwen3_next does not divide into 4 ranks"):
        _split(model, ranks=4)


_LARGE = {
    "hidden_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "kv_lora_rank": 256,
    "n_routed_experts": None,
    "num_hidden_layers": 2,
}
"""Tensors of a megabyte: of small ones MLX keeps the whole."""


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("name", "sizes", "way"),
    [
        ("deepseek_v3", _LARGE, "tensor"),
        ("qwen3_next", {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}, "pipeline"),
    ],
)
def test_a_rank_keeps_no_more_than_its_part(name: str, sizes: Any, way: str, number: int) -> None:
    """In memory: a slice of whole rows, as deepseek_v3's `embed_q` is cut, would hold the whole tensor."""
    mx.clear_cache()
    before = mx.get_active_memory()
    model = _model(name, **sizes)
    whole = _nbytes(model)
    assert _split(model, number=number) == way
    mx.eval(model.parameters())
    part = _nbytes(model)
    assert part < 0.62 * whole
    # Rotary frequencies and the like are no parameters.
    assert mx.get_active_memory() - before < part + 0.02 * whole


def _nbytes(model: Any) -> int:
    arrays: Any = tree_flatten(model.parameters())
    return sum(value.nbytes for _, value in arrays)
