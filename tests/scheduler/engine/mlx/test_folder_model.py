"""The tensors that a model wants decide what of a folder is loaded; the rest is named, or refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from scheduler.engine.load_failure import LoadRefused
from scheduler.engine.mlx.folder_model import read_model
from scheduler.errors import StartupError
from tests.scheduler.engine.mlx.zoo import tiny
from tests.scheduler.engine.mlx.zoo.census import ENTRIES, write
from tests.scheduler.engine.mlx.zoo.tiny import configuration, random_model

_PROMPT = mx.array([[(37 * at) % tiny.VOCABULARY for at in range(24)]])


def _weights(folder: Path) -> dict[str, mx.array]:
    found: Any = mx.load(str(folder / "model.safetensors"))
    return dict(found)


def _save(folder: Path, name: str, weights: dict[str, mx.array]) -> None:
    mx.save_safetensors(str(folder / name), weights, metadata={"format": "pt"})


def _rewritten(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))


def _logits(folder: Path) -> mx.array:
    logits: mx.array = read_model(folder)[0](_PROMPT)
    mx.eval(logits)
    return logits


def _same(one: mx.array, other: mx.array) -> bool:
    return float(mx.abs(one - other).max()) < 1e-5 * float(mx.abs(one).max())


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.rotary_emb.inv_freq",
        "mtp.layers.0.self_attn.q_proj.weight",
        "model.mtp.norm.weight",
        "model.layers.4.mlp.up_proj.weight",
        "model.layers.4.eh_proj.weight",
        "model.layers.1.self_attn.k_scale",
        "vision_tower.blocks.0.attn.qkv.weight",
        "model.visual.patch_embed.proj.weight",
        "multi_modal_projector.linear_1.bias",
    ],
)
def test_tensors_that_no_answer_needs_do_no_harm(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Computed ones, drafts' layers, eyes: the same logits, and the operator reads which they are."""
    write("llama", tmp_path)
    expected = _logits(tmp_path)
    capsys.readouterr()
    _save(tmp_path, "model.safetensors", _weights(tmp_path) | {name: mx.ones((4, 4))})
    assert _same(expected, _logits(tmp_path))
    assert capsys.readouterr().err in (f"tensors that are not needed: {name}\n", "")


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.bias", "model.layers.1.mlp.gate.weight"])
def test_a_tensor_that_the_model_would_need_is_refused(name: str, tmp_path: Path) -> None:
    """A bias or a router that mlx-lm's module does not have changes answers."""
    write("llama", tmp_path, attention_bias=False)
    _save(tmp_path, "model.safetensors", _weights(tmp_path) | {name: mx.ones((4,))})
    with pytest.raises(ValueError, match=f"parameters not in model: \n{name}"):
        read_model(tmp_path)


def test_a_head_that_is_there_is_used_where_nothing_says_that_it_is_tied(tmp_path: Path) -> None:
    """mlx-lm's default for Llama drops it."""
    write("llama", tmp_path, tie_word_embeddings=False)
    expected = _logits(tmp_path)
    _rewritten(tmp_path, tie_word_embeddings=...)
    assert _same(expected, _logits(tmp_path))


def test_a_head_that_differs_is_used_although_it_is_tied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A merged adapter leaves the configuration as it was; a head that is a copy changes nothing."""
    write("llama", tmp_path, tie_word_embeddings=False)
    expected, weights = _logits(tmp_path), _weights(tmp_path)
    _rewritten(tmp_path, tie_word_embeddings=True)
    assert _same(expected, _logits(tmp_path))
    assert "the head that is there differs: it is used" in capsys.readouterr().err
    copied = weights["model.embed_tokens.weight"]
    _save(tmp_path, "model.safetensors", weights | {"lm_head.weight": mx.array(copied)})
    tied = _logits(tmp_path)
    assert capsys.readouterr().err == ""
    assert not _same(expected, tied)


def _packed(weight: mx.array, order: tuple[int, ...]) -> mx.array:
    """AutoAWQ's packing of (in, out) numbers of four bits, eight columns a word."""
    rows, columns = weight.shape
    nibbles = weight.reshape(rows, columns // 8, 8)[..., mx.array(order)].astype(mx.uint32)
    return mx.sum(nibbles << (4 * mx.arange(8, dtype=mx.uint32)), axis=-1).astype(mx.int32)


def test_awq_is_unpacked_right(tmp_path: Path) -> None:
    """Against the same numbers multiplied out."""
    group = 32
    write("llama", tmp_path, hidden_size=64, num_attention_heads=2, head_dim=32, intermediate_size=64)
    weights, packed, plain = _weights(tmp_path), dict[str, mx.array](), dict[str, mx.array]()
    for name, array in weights.items():
        if not name.endswith("_proj.weight"):
            packed[name] = plain[name] = array
            continue
        columns, rows = array.shape
        numbers = mx.random.randint(0, 16, (rows, columns))
        zeros = mx.random.randint(0, 16, (rows // group, columns))
        scales = (0.01 + 0.02 * mx.random.uniform(shape=(rows // group, columns))).astype(mx.float16)
        spread = [mx.repeat(one, group, axis=0) for one in (zeros, scales)]
        plain[name] = ((numbers - spread[0]) * spread[1]).astype(mx.float32).T
        base = name.removesuffix("weight")
        packed[f"{base}qweight"] = _packed(numbers, (0, 2, 4, 6, 1, 3, 5, 7))
        packed[f"{base}qzeros"] = _packed(zeros, (0, 2, 4, 6, 1, 3, 5, 7))
        packed[f"{base}scales"] = scales
    _save(tmp_path, "model.safetensors", plain)
    expected = _logits(tmp_path)
    _save(tmp_path, "model.safetensors", packed)
    awq = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    _rewritten(tmp_path, quantization_config=awq)
    found = _logits(tmp_path)
    assert float(mx.abs(expected - found).max()) < 0.02 * float(mx.abs(expected).max())
    _rewritten(tmp_path, quantization_config=awq | {"version": "gemv"})
    with pytest.raises(StartupError, match=r"awq \(version gemv\).*mlx_lm.convert"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "suffixes", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, ("qweight", "qzeros", "scales"), "gptq"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("weight_scale_inv",), "fp8"),
        ({"quant_method": "compressed-tensors"}, ("weight_scale",), "compressed-tensors"),
        ({"quant_method": "compressed-tensors"}, ("weight_packed",), "compressed-tensors"),
        ({"quant_method": "bitsandbytes"}, ("weight.absmax",), "bitsandbytes"),
        (None, ("weight_scale_inv",), "another program"),
    ],
)
def test_packings_that_mlx_lm_does_not_unpack_are_refused_by_name(
    config: dict[str, Any] | None, suffixes: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """With what to do, and before any of it is loaded."""
    write("llama", tmp_path)
    layer = "model.layers.0.self_attn.q_proj."
    _save(
        tmp_path, "model.safetensors", _weights(tmp_path) | {layer + one: mx.ones((4, 4)) for one in suffixes}
    )
    _rewritten(tmp_path, quantization_config=config)
    with pytest.raises(StartupError, match=rf"packed as {words}.*mlx_lm.convert"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("family", "field", "value"),
    [
        ("falcon_h1", "key_multiplier", 0.39),
        ("gemma", "hidden_act", "gelu"),
        ("gpt_bigcode", "activation_function", "gelu_pytorch_tanh"),
        ("gpt_neox", "hidden_act", "gelu"),
        ("jamba", "num_experts", 16),
        ("mamba2", "n_groups", 8),
        ("starcoder2", "hidden_act", "gelu_pytorch_tanh"),
    ],
)
def test_what_mlx_lm_computes_otherwise_is_refused_by_name(
    family: str, field: str, value: Any, tmp_path: Path
) -> None:
    """Families that nobody farms, whose answers would be near those of transformers."""
    write("llama", tmp_path)
    _rewritten(tmp_path, model_type=family, **{field: value})
    with pytest.raises(LoadRefused, match=rf"config\.json says {field} {value!r}, which mlx-lm's {family} "):
        read_model(tmp_path)


def test_fp8_in_blocks_is_read_where_the_module_unpacks_it(tmp_path: Path) -> None:
    """DeepSeek's own form."""
    write("deepseek_v3", tmp_path)
    weights, name = _weights(tmp_path), "model.layers.0.self_attn.o_proj.weight"
    packed = mx.to_fp8(weights[name])
    _save(tmp_path, "model.safetensors", weights | {name: mx.from_fp8(packed, dtype=mx.float32)})
    expected = _logits(tmp_path)
    _save(tmp_path, "model.safetensors", weights | {name: packed, f"{name}_scale_inv": mx.ones((1, 1))})
    _rewritten(tmp_path, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert _same(expected, _logits(tmp_path))


_NESTED = ("qwen3_vl", "qwen3_vl_moe", "qwen2_vl", "gemma4", "qwen3_5", "qwen3_5_moe", "mistral3")
_TIES = [(name, tied) for name in _NESTED for tied in (True, False) if (name, tied) != ("qwen3_vl_moe", True)]
"""Without a tied qwen3_vl_moe: mlx-lm looks for its head."""


@pytest.mark.parametrize(("name", "tied"), _TIES)
def test_a_tie_beside_the_text_part_is_the_parts(name: str, tied: bool, tmp_path: Path) -> None:
    """As transformers 5 saves it: there alone, or with what is true of the class in the part."""
    field = "tie_word_embeddings"
    config = configuration(name, ENTRIES.get(name, {}))
    text = {each: value for each, value in config["text_config"].items() if each != field}
    model = random_model(name, copy.deepcopy({**config, "text_config": text | {field: tied}}))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))

    def logits(own: dict[str, bool], beside: dict[str, bool]) -> mx.array:
        (tmp_path / "config.json").write_text(json.dumps({**config, "text_config": text | own, **beside}))
        found: mx.array = read_model(tmp_path)[0](_PROMPT)
        return found

    expected = logits({field: tied}, {})
    for own in ({}, {field: tied}, {field: not tied}):
        assert _same(expected, logits(own, {field: tied}))
