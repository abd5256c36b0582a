"""Types of models that the installed mlx-lm knows."""

from __future__ import annotations

import re

import pytest

from scheduler.errors import StartupError
from scheduler.prompt import model_types
from scheduler.shared.folder.mlx_lm_module import module_of


@pytest.mark.parametrize("model_type", ["qwen3", "mistral", "nemotron-nas", "lfm2-vl"])
def test_known_types_pass(model_type: str) -> None:
    """By their module, or by another name for it (mlx-lm's MODEL_REMAPPING)."""
    model_types.check(model_type)


@pytest.mark.parametrize("model_type", ["martian", "../utils", "qwen3.py"])
def test_an_unknown_type_is_named_with_what_to_do(model_type: str) -> None:
    with pytest.raises(StartupError, match=rf"no model of type '{re.escape(model_type)}': upgrade mlx-lm"):
        model_types.check(model_type)


def test_a_config_without_a_type_is_refused() -> None:
    with pytest.raises(StartupError, match="names no model_type"):
        model_types.check("")


def test_the_class_decides_where_mlx_lm_asks_for_it() -> None:
    """One type may have two modules."""
    by_type, by_class = module_of("bailing_hybrid"), module_of("bailing_hybrid", ["BailingMoeV3ForCausalLM"])
    assert by_type is not None
    assert by_class is not None
    assert (by_type.name, by_class.name) == ("bailing_hybrid", "bailing_moe_v3")
