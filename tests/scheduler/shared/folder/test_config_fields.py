"""A field of config.json that changes answers is read or refused; the others are named."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from scheduler.errors import StartupError
from scheduler.shared.folder.config_fields import unread_fields
from scheduler.shared.folder.mlx_lm_module import Module, module_of, package_folder, renamed_types
from scheduler.shared.folder.reading import describe
from scheduler.shared.folder.weight_files import WeightFiles

_NO_WEIGHTS = WeightFiles((), {})
_VISION_ONLY = {"pixtral"}
"""transformers has another model under this name than mlx-lm."""


@cache
def modules() -> dict[str, Module]:
    """All modules that build a model, by name."""
    package = package_folder()
    assert package is not None
    files = sorted((package / "models").glob("*.py"))
    names = [path.stem for path in files if "class ModelArgs" in path.read_text("utf-8")]
    return {name: module for name in names if (module := module_of(name)) is not None}


def _configurations() -> Iterator[tuple[str, dict[str, Any]]]:
    package = package_folder()
    assert package is not None
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in [*modules(), *renamed_types(package)]:
            if name in CONFIG_MAPPING and name not in _VISION_ONLY:
                yield name, CONFIG_MAPPING[name]().to_dict()
    logging.disable(logging.NOTSET)


def test_no_model_is_refused_for_what_transformers_has_by_default() -> None:
    """Else the table of effects would be wrong about the module."""
    seen = 0
    for name, config in _configurations():
        module = module_of(name)
        assert module is not None
        unread_fields({**config, **(config.get("text_config") or {})}, module)
        seen += 1
    assert seen > 70


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        ("llama", "attn_logit_softcapping", 50.0),
        ("qwen2", "final_logit_softcapping", 30.0),
        ("olmo2", "clip_qkv", 8.0),
        ("llama", "residual_multiplier", 0.22),
        ("deepseek_v3", "scoring_func", "softmax"),
        ("qwen2_moe", "norm_topk_prob", True),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("llama", "hidden_act", "gelu"),
        ("gemma2", "hidden_activation", "silu"),
        ("gpt2", "activation_function", "relu"),
    ],
)
def test_what_changes_answers_and_is_not_computed_is_refused_by_name(
    model_type: str, field: str, value: Any
) -> None:
    """The file, the field, its value, and the module."""
    with pytest.raises(StartupError, match=rf"config\.json says {field} {value!r}, .*mlx-lm's {model_type}"):
        describe({"model_type": model_type, field: value}, {}, _NO_WEIGHTS)


@pytest.mark.parametrize(
    ("model_type", "field", "value"),
    [
        ("gemma2", "attn_logit_softcapping", 50.0),
        ("phi-msft", "activation_function", "gelu_new"),
        ("nanochat", "final_logit_softcapping", 15.0),
        ("hunyuan", "norm_topk_prob", True),
        ("hunyuan", "routed_scaling_factor", 2.5),
        ("llama", "scoring_func", "softmax"),
        ("llama", "hidden_act", "an_activation_of_next_year"),
    ],
)
def test_what_the_module_computes_passes(model_type: str, field: str, value: Any) -> None:
    """Because it reads the field, or has the value in its code, or the value is that of doing nothing."""
    assert describe({"model_type": model_type, field: value}, {}, _NO_WEIGHTS).notes == ()
