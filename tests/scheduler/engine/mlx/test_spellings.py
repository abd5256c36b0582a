"""A folder that transformers 5 wrote gives the logits of the one that transformers 4 wrote."""

from __future__ import annotations

import copy
import importlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import _decode_tagged_floats
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from scheduler.engine.mlx.folder_model import read_model
from scheduler.shared.folder.mlx_lm_module import Module, module_of
from scheduler.shared.folder.rotary import in_both_spellings
from scheduler.shared.folder.weight_files import INDEX
from tests.examples import sampled
from tests.scheduler.engine.mlx.zoo import tiny
from tests.scheduler.engine.mlx.zoo.census import ENTRIES, names
from tests.scheduler.engine.mlx.zoo.tiny import configuration, random_model

_BASE, _LOCAL_BASE = 54_321.0, 4_321.0
"""No module's default."""
_PROMPT = mx.array([[(37 * at) % tiny.VOCABULARY for at in range(48)]])
_NOT_WRITTEN = {
    "bailing_hybrid": "transformers has another size of its heads",
    "exaone4": "transformers takes its pattern of layers as a number only: test_a_pattern_of_letters",
    "gemma4": "transformers writes numbers of shared layers that the tiny model does not have",
    "gemma4_text": "as gemma4",
    "mimo_v2_flash": "transformers takes no other positions than the original's, too odd for a tiny head",
    "minimax_m3_vl": "transformers refuses the names of its layers",
    "muse_glimmer": "transformers leaves the number of layers out of the text's part",
    "pixtral": "transformers has its vision part under this name",
}
_CHANGES: dict[str, dict[str, Any]] = {
    "helium": {"tie_word_embeddings": False},
    "step3p5": {"moe_layers_enum": "3"},
}
_SAID_BY_TRANSFORMERS = ("rope_parameters", "num_local_experts", "n_routed_experts", "num_expert_group")


def _cases() -> list[str]:
    """The families that transformers can write, by the models of the zoo."""
    return [name for name in names() if "+" not in name and name not in _NOT_WRITTEN and _written_as(name)]


def _written_as(name: str) -> str | None:
    try:
        model_type = str(configuration(name, ENTRIES.get(name, {}))["model_type"])
    except KeyError:
        return None
    return model_type if model_type in CONFIG_MAPPING else None


@pytest.fixture(autouse=True)
def own_bases(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("rope_theta", "rotary_emb_base"):
        monkeypatch.setitem(tiny.SIZES, name, _BASE)
    for name in ("rope_local_base_freq", "swa_rope_theta"):
        monkeypatch.setitem(tiny.SIZES, name, _LOCAL_BASE)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def _written(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json that the installed transformers writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = CONFIG_MAPPING[config["model_type"]](**copy.deepcopy(dict(config)))
    written: dict[str, Any] = _decode_tagged_floats(json.loads(made.to_json_string(use_diff=True)))
    return written


def _old(config: dict[str, Any], new: Mapping[str, Any], module: Module) -> dict[str, Any]:
    """`config` with what transformers has a default of its own for, in the spelling of transformers 4."""
    text, written = config.get("text_config") or config, new.get("text_config") or new
    for field in module.declared - text.keys() - set(_SAID_BY_TRANSFORMERS):
        if field in written:
            text[field] = written[field]
    given = written.get("rope_parameters") or {}
    full = given.get("full_attention", given)
    if "rope_theta" not in full:
        return config
    if "rope_theta" not in module.declared:  # It knows the new spelling alone.
        text["rope_parameters"] = given
        return config
    text |= dict.fromkeys(("rope_theta", "rotary_emb_base"), full["rope_theta"])
    if local := given.get("sliding_attention"):
        text |= dict.fromkeys(("rope_local_base_freq", "swa_rope_theta"), local["rope_theta"])
    if "partial_rotary_factor" in full:
        text |= dict.fromkeys(("partial_rotary_factor", "rotary_pct"), full["partial_rotary_factor"])
    kind = full.get("rope_type", "default")
    scaling = {name: value for name, value in full.items() if name != "rope_theta"}
    if kind != "default" or not isinstance(text.get("rope_scaling"), dict):
        text["rope_scaling"] = None if kind == "default" else {**scaling, "type": kind}
    return config


def _logits(name: str, config: dict[str, Any], weights: list[tuple[str, mx.array]]) -> mx.array:
    code = importlib.import_module(f"mlx_lm.models.{name}")
    model = code.Model(code.ModelArgs.from_dict(copy.deepcopy(config)))
    model.eval()
    model.load_weights(weights, strict=True)
    logits: mx.array = model(_PROMPT)
    mx.eval(logits)
    return logits


@dataclass(frozen=True, slots=True)
class _Family:
    """A tiny model, its configuration in both spellings, and the logits of the old one."""

    old: dict[str, Any]
    new: dict[str, Any]
    module: Module
    weights: list[tuple[str, mx.array]]
    logits: mx.array


@cache
def _family(name: str) -> _Family:
    config = configuration(name, ENTRIES.get(name, {})) | _CHANGES.get(name, {})
    module = module_of(config["model_type"])
    assert module is not None
    new = _written(config)
    if name == "olmo3":  # transformers gives layers with a window a base of its own.
        new["rope_parameters"]["sliding_attention"]["rope_theta"] = _BASE
    if name == "gpt_oss":  # What it changes is in `upstream/test_rotary.py`.
        new["rope_parameters"].pop("truncate")
    old = in_both_spellings(_old(config, new, module), module)
    model = random_model(name, copy.deepcopy(old))
    weights: Any = tree_flatten(model.parameters())
    return _Family(old, new, module, weights, model(_PROMPT))


def _agree(one: mx.array, other: mx.array) -> bool:
    return float(mx.abs(one - other).max()) < 1e-5 * float(mx.abs(one).max())


@pytest.mark.parametrize("name", _cases())
def test_both_spellings_give_the_same_logits(name: str) -> None:
    """Whatever the module itself reads of the new one."""
    family = _family(name)
    found = _logits(name, in_both_spellings(family.new, family.module), family.weights)
    assert _agree(family.logits, found)


_NOT_LOADED_AGAIN = {
    "minicpm": "mlx-lm refuses the head that it saved",
    "qwen3_vl_moe": "mlx-lm looks for a head that is tied",
    "recurrent_gemma": "its base is in mlx-lm's code, so this one is refused",
    **dict.fromkeys(
        ("gemma", "glm", "gpt_bigcode", "gpt_neox", "starcoder2"),
        "mlx-lm's answer is put right as it is loaded: `references/` compares it with transformers",
    ),
}
"""Modules whose tensors, as they are saved, are not those that they load, and whose answers are not."""
_WAYS = ("one file", "shards", "a stale index", "an older copy")


def _save(way: str, folder: Path, weights: dict[str, mx.array]) -> None:
    names = sorted(weights)
    one, two = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    if way == "shards":
        mx.save_safetensors(str(folder / one), {name: weights[name] for name in names[::2]})
        mx.save_safetensors(str(folder / two), {name: weights[name] for name in names[1::2]})
    else:
        mx.save_safetensors(str(folder / "model.safetensors"), weights)
    if way == "an older copy":
        mx.save_safetensors(str(folder / one), {name: array + 1 for name, array in weights.items()})
        (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, "model.safetensors")}))
    if way == "a stale index":
        (folder / INDEX).write_text(json.dumps({"weight_map": {"model.visual.w": one, names[0]: two}}))


_SAVED = [name for name in _cases() if name not in _NOT_LOADED_AGAIN]
_SAMPLE = ("llama", "qwen3_moe", "gemma3", "stablelm", "cohere2", "deepseek_v3", "mistral3", "qwen3_5")
_IN_TURN = [(name, _WAYS[at % len(_WAYS)]) for at, name in enumerate(_SAMPLE)]


@pytest.mark.parametrize(
    "case", sampled([(name, way) for name in _SAVED for way in _WAYS], _IN_TURN), ids=", ".join
)
def test_a_folder_of_transformers_5_is_that_of_4(case: tuple[str, str], tmp_path: Path) -> None:
    """However its weights are saved: nothing that transformers writes refuses it."""
    name, way = case
    family = _family(name)
    _save(way, tmp_path, dict(family.weights))
    for config in (family.new, family.old):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert _agree(family.logits, read_model(tmp_path)[0](_PROMPT))


_NESTED = ("qwen3_vl", "qwen3_vl_moe", "qwen2_vl", "gemma4", "qwen3_5", "qwen3_5_moe", "mistral3")
_TIES = [
    (name, tied) for name in _NESTED for tied in (True, False) if tied <= (name not in _NOT_LOADED_AGAIN)
]


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
        assert _agree(expected, logits(own, {field: tied}))
