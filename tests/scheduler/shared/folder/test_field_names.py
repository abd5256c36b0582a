"""Fields of transformers 5 under the names that mlx-lm's modules read."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.errors import StartupError
from scheduler.shared.folder.reading import describe
from scheduler.shared.folder.weight_files import WeightFiles

_FULL, _WINDOW = "full_attention", "sliding_attention"


def changes(**config: Any) -> dict[str, Any]:
    """What the module is given otherwise than it is written, but for the head, and for what nobody wrote."""
    found = dict(describe(config, {}, WeightFiles((), {})).changes)
    found.pop("tie_word_embeddings", None)
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("model_type", "written", "read"),
    [
        ("qwen3_moe", {"num_local_experts": 128}, {"num_experts": 128}),
        ("step3p5", {"num_key_value_heads": 8}, {"num_attention_groups": 8}),
        ("step3p5", {"mlp_layer_types": ["dense", "sparse", "sparse"]}, {"moe_layers_enum": "1,2"}),
        ("glm4_moe", {"mlp_layer_types": ["dense", "sparse"]}, {"first_k_dense_replace": 1}),
        ("cohere2", {"layer_types": [_WINDOW, _WINDOW, _FULL] * 2}, {"sliding_window_pattern": 3}),
        ("cohere2", {"layer_types": [_FULL, _FULL]}, {"sliding_window_pattern": 1}),
        ("qwen3_next", {"layer_types": ["linear_attention", _FULL]}, {"full_attention_interval": 2}),
        ("exaone4", {"layer_types": [_WINDOW, _WINDOW, _FULL]}, {"sliding_window_pattern": "LLG"}),
        ("exaone4", {"layer_types": [_FULL, _FULL], "sliding_window_pattern": None}, {}),
        (
            "granitemoehybrid",
            {"layer_types": ["linear_attention", _FULL]},
            {"layer_types": ["mamba", "attention"]},
        ),
        ("llama", {"num_local_experts": 4, "layer_types": [_FULL]}, {}),
    ],
)
def test_names_and_kinds_are_the_modules_own(
    model_type: str, written: dict[str, Any], read: dict[str, Any]
) -> None:
    """Where the module lacks the field that it reads."""
    assert changes(model_type=model_type, **written) == read


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layer_types": [_FULL, _WINDOW, _WINDOW, _FULL]}, "names others"),
        ({"layer_types": [_WINDOW, _FULL], "sliding_window_pattern": 4}, "contradicts 4"),
    ],
)
def test_layers_that_the_module_cannot_arrange_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=rf"cohere2 has one layer of full attention .* {words}"):
        changes(model_type="cohere2", **fields)


def test_positions_that_cannot_be_computed_are_refused() -> None:
    nested = {_FULL: {"rope_theta": 1e6}, _WINDOW: {"rope_theta": 1e4}}
    with pytest.raises(StartupError, match=f"for {_FULL}, {_WINDOW} apart, and mlx-lm's llama computes"):
        changes(model_type="llama", rope_parameters=nested, layer_types=[_FULL, _WINDOW])
