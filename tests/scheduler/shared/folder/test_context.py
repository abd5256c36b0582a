"""How long a model's context is, from the fields of its config.json."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.errors import StartupError
from scheduler.shared.folder.context import Context, chosen
from scheduler.shared.folder.reading import FolderReading, describe
from scheduler.shared.folder.weight_files import StoredTensor, WeightFiles


def reading(config: dict[str, Any], **shapes: tuple[int, ...]) -> FolderReading:
    """Describe a folder with this config.json, and with tensors of these shapes."""
    tensors = {name: StoredTensor("F32", 1, 4, shape) for name, shape in shapes.items()}
    return describe(config, {}, WeightFiles(("model.safetensors",), tensors))


def tokens(config: dict[str, Any], **shapes: tuple[int, ...]) -> int:
    return reading(config, **shapes).context.tokens


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("model_type", "scaling", "most", "expected"),
    [
        ("qwen3", YARN, 40960, 131072),
        ("qwen2", {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 32768, 131072),
        ("qwen3_moe", {"rope_type": "yarn", "factor": 4.0}, 262144, 1048576),
        (
            "deepseek_v3",
            {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            163840,
            163840,
        ),
        ("llama", {"type": "linear", "factor": 4.0}, 2048, 8192),
        (
            "llama",
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192},
            131072,
            131072,
        ),
        ("gemma3_text", {"rope_type": "linear", "factor": 8.0}, 131072, 131072),
        ("qwen2_vl", {"type": "mrope", "mrope_section": [16, 24, 24]}, 32768, 32768),
        ("llama", {"rope_type": "default"}, 4096, 4096),
    ],
)
def test_a_scaling_lengthens_the_context_as_in_vllm(
    spelling: str, model_type: str, scaling: dict[str, Any], most: int, expected: int
) -> None:
    """YaRN from its original length, linear from the configured one; others are in it already."""
    config = {
        "model_type": model_type,
        "max_position_embeddings": most,
        spelling: {**scaling, "rope_theta": 1e6},
    }
    assert tokens(config) == expected


def test_longrope_begins_with_its_original_length() -> None:
    """vLLM's default, with the short factors; an operator can have all of it."""
    scaling = {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
    config = {"model_type": "phi3", "max_position_embeddings": 131072, "rope_scaling": scaling}
    found = reading(config | {"original_max_position_embeddings": 4096})
    assert found.context == Context(4096, 131072, 4096)
    assert found.notes[-1].startswith("longrope: 4096 tokens with its short factors; --max-model-len")
    assert chosen(found.context, 131072) == 131072


@pytest.mark.parametrize("spelling", ["rope_scaling", "rope_parameters"])
def test_a_length_beside_the_scaling_counts_before_the_one_in_it(spelling: str) -> None:
    """transformers 5 writes its own guess into the scaling, and reads the field beside it."""
    scaling = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0], "rope_theta": 1e4}
    config = {"model_type": "llama", "max_position_embeddings": 256, "original_max_position_embeddings": 64}
    config[spelling] = scaling | {"original_max_position_embeddings": 256}
    assert reading(config).context == Context(64, 256, 64)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"n_positions": 1024, "n_ctx": 1024}, 1024),
        ({"n_ctx": 512}, 512),
        ({"max_seq_len": 2048}, 2048),
        ({"seq_length": 8192, "max_position_embeddings": 4096}, 4096),
        ({"model_max_length": 131072, "max_position_embeddings": 8192}, 131072),
        ({"max_position_embeddings": None}, 32768),
        ({}, 32768),
    ],
)
def test_every_name_of_the_length_is_known(config: dict[str, Any], expected: int) -> None:
    """The smallest of several, but `model_max_length` before all others, as in vLLM."""
    assert tokens(config) == expected


def test_a_table_of_positions_is_the_context() -> None:
    """Behind it MLX reads whatever is in memory."""
    config = {"model_type": "gpt2", "n_positions": 1024}
    assert tokens(config, **{"transformer.wpe.weight": (64, 32)}) == 64
    assert tokens({"model_type": "gpt2"}, **{"wpe.weight": (64, 32)}) == 64
    with pytest.raises(StartupError, match="--max-model-len 65: the model's context is 64"):
        chosen(reading(config, **{"wpe.weight": (64, 32)}).context, 65)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 32768),
        ({"model_type": "gemma2", "sliding_window": 4096}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, 32768),
        ({"model_type": "qwen2", "sliding_window": 4096}, 32768),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True}, 4096),
        ({"model_type": "qwen2", "sliding_window": 4096, "layer_types": ["full_attention"] * 2}, 32768),
        ({"model_type": "gemma3_text", "sliding_window": 512}, 32768),
        ({"model_type": "gpt_oss", "sliding_window": 128, "layer_types": ["sliding_attention"]}, 32768),
    ],
)
def test_a_window_that_mlx_lm_does_not_have_bounds_the_context(config: dict[str, Any], expected: int) -> None:
    """Up to it the answers are right; more is the operator's word."""
    found = reading(config | {"max_position_embeddings": 32768})
    assert found.context.tokens == expected
    assert found.context.most_tokens == 32768
    assert any("has no sliding window" in note for note in found.notes) == (expected == 4096)
